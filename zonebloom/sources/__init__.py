"""Sources of datasets: where their files come from, and how their rows are read."""
