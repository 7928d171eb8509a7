"""The rules of `zonebloom.spark.enable` as a jar, for drivers of Spark that run no Python."""
