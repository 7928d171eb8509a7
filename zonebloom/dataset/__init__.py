"""The function `dataset`, which opens a dataset, and the class `Dataset`, which it returns."""

from zonebloom.building.request import IndexConfig
from zonebloom.dataset.facade import Dataset, DatasetOptimizer
from zonebloom.dataset.opening import dataset
from zonebloom.dataset.reading import Filter
from zonebloom.index.describe import IndexDescription

__all__ = ["Dataset", "DatasetOptimizer", "Filter", "IndexConfig", "IndexDescription", "dataset"]
