"""From a filter to zones, pages and rows."""
