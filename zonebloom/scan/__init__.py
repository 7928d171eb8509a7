"""Search, plan and run filtered reads, and look up keys."""
