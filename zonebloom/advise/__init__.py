"""Estimate from a sample of zones what an index would cost and save."""
