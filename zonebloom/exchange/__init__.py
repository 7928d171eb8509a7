"""Export indices to Lance and Hudi, and read indices of Lance."""
