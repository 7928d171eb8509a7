"""Read Parquet files below the level of rows: footers, pages, encodings, filters, encryption."""
