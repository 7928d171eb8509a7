"""Indices of a lake by name, as users of Hyperspace manage theirs."""
