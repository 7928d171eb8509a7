"""Which fragments and indices there are, in numbered versions; whether a file is as it was."""
