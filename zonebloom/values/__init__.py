"""What a literal is to a column's type, and the bits it is probed by."""
