"""Make Spark's own Parquet reader skip files that cannot match a query's filters."""
