"""Indices and figures in the forms of Lance and Hudi."""
