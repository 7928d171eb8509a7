"""From columns to zones, segments and one commit."""
