"""Upsert and erase rows by key: find them by the index, write their files anew, prove it."""
