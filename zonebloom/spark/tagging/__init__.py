"""Where in a dataset the rows of given keys lie."""
