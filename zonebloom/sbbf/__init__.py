"""The split-block Bloom filter. This room knows numbers and bytes, but no datasets."""
