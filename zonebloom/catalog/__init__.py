"""Store fragments and indices in numbered catalog versions, and check files against them."""
