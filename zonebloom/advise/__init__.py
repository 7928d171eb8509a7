"""Judge from a sample of zones which columns are worth an index."""
