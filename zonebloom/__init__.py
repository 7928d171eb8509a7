"""Zone Bloom indices over Arrow datasets as they lie: point lookups that read only the zones
that may match.

    import zonebloom as zb

    ds = zb.dataset("flights/")
    ds.create_scalar_index("tailnum", "BLOOMFILTER")
    ds.to_table(filter="tailnum = 'N14228'")
"""

from __future__ import annotations

from zonebloom import errors
from zonebloom.dataset import Dataset, IndexConfig, dataset
from zonebloom.ranges import RowRanges, SearchResult
from zonebloom.sbbf.filter import Sbbf
from zonebloom.storage.sealed import Encryption
from zonebloom.version import __version__ as __version__

__all__ = [
    "Dataset",
    "Encryption",
    "IndexConfig",
    "RowRanges",
    "Sbbf",
    "SearchResult",
    "dataset",
    "errors",
    "warmup",
]


def warmup() -> None:
    """Compile every kernel now, or load it from the cache, rather than at its first use."""
    import zonebloom.sbbf.blocks
    import zonebloom.sbbf.xxh64
    import zonebloom.storage.parquet.leaf_reader
    import zonebloom.storage.pread_kernel  # noqa: F401
