"""What an index would cost and save, from a sample."""
