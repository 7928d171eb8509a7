"""Manage named indices of a data lake with an interface like Hyperspace's."""
