"""Spark's Python workers: what they have, what they lack, what became of them."""
