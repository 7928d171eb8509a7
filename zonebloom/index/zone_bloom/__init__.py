"""The zone Bloom index: a filter for each zone of rows."""
