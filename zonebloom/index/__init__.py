"""Indices of any kind: build them, open them, look keys up in them, describe and validate them."""
