"""Joins that drop rows without a match early, by an index."""
