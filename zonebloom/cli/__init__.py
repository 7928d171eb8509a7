"""The command line of zonebloom."""
