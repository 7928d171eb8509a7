"""The keys that an index holds of each row: its value, a combination, elements or words."""
