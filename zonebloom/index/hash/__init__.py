"""The index kind HASH: from the hash of a key to the zones that hold it, through one block."""
