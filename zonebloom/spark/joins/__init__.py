"""Joins that leave out early what an index says has no match."""
