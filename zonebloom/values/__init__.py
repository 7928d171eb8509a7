"""Types of columns, literals compared with their values, and the hashes that rows are found by."""
