"""The tables of an index, in the row layout or the sliced layout, and lookups in them."""
