"""Bytes of files: identity, random access, object stores, encryption of index files."""
