"""The function `dataset`, which opens a dataset, and the class `Dataset`, which it returns."""
