"""The zone Bloom index: a filter for each zone of rows, in the row layout or the sliced layout."""
