"""Native reads of Spark without the files their filters exclude."""
