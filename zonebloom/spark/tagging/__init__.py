"""Find where in a dataset the rows with the keys of a frame are."""
