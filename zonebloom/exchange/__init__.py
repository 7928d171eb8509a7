"""Export indices to Lance, and read indices of Lance."""
