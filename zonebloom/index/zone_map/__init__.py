"""The zone map index: the least and the greatest value of each zone."""
