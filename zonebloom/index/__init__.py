"""Tables of zone filters in the row layout and the sliced layout, and lookups in them."""
