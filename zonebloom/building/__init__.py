"""Build indices: from columns to zones, segments and one commit."""
