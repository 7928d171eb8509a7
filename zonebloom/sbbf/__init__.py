"""The split-block Bloom filter: numbers and bytes, knows no dataset."""
