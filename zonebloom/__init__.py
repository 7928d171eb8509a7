"""Bloom filter indices beside Arrow datasets: point lookups that read only the zones that may
match.

    import zonebloom as zb

    ds = zb.dataset("flights/")
    ds.create_scalar_index("tailnum", "BLOOMFILTER")
    ds.to_table(filter="tailnum = 'N14228'")

Other public modules are `zonebloom.spark`, `zonebloom.plots` and
`zonebloom.exchange.lance`. `zonebloom.results` has the types that methods return, and
`zonebloom.errors` those that they raise.

Examples
--------
All examples of the reference start with the following lines, each in a new folder. `ds` consists
of three indexed files in the folder ``orders``.

>>> import os
>>> import numpy as np
>>> import pyarrow as pa
>>> import pyarrow.parquet as pq
>>> import zonebloom as zb
>>> ids = np.arange(3000) * 1009 % 3000
>>> customers = [f"C{id % 500:03}" for id in ids.tolist()]
>>> days = np.datetime64("2024-05-01") + np.arange(3000) // 1000
>>> table = pa.table({"id": ids, "customer": customers, "day": days})
>>> os.mkdir("orders")
>>> for n in range(3):
...     pq.write_table(table.slice(1000 * n, 1000), f"orders/{n}.parquet")
>>> ds = zb.dataset("orders")
>>> ds.create_scalar_index(["id", "customer"], number_of_items=100)
>>> ds
<zonebloom.Dataset orders: 3 parquet files, 3 columns; indices: id_idx, customer_idx>
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zonebloom import errors
from zonebloom.base.version import __version__ as __version__

if TYPE_CHECKING:
    from zonebloom.base.row_ranges import RowRanges, SearchResult
    from zonebloom.changes.receipt import Receipt
    from zonebloom.facade.dataset import Dataset
    from zonebloom.facade.opening import dataset
    from zonebloom.parquet.encryption_keys import ParquetKeys
    from zonebloom.sbbf.filter import Sbbf
    from zonebloom.storage.encryption import Encryption

__all__ = [
    "Dataset",
    "Encryption",
    "ParquetKeys",
    "Receipt",
    "RowRanges",
    "Sbbf",
    "SearchResult",
    "dataset",
    "errors",
    "warmup",
]

# The modules of the names above that are imported when the name is first used.
_MODULES = {
    "Dataset": "zonebloom.facade.dataset",
    "Encryption": "zonebloom.storage.encryption",
    "ParquetKeys": "zonebloom.parquet.encryption_keys",
    "Receipt": "zonebloom.changes.receipt",
    "RowRanges": "zonebloom.base.row_ranges",
    "Sbbf": "zonebloom.sbbf.filter",
    "SearchResult": "zonebloom.base.row_ranges",
    "dataset": "zonebloom.facade.opening",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used.

    So ``import zonebloom`` does not import PyArrow, and PyArrow does not import pandas.
    """
    if name not in _MODULES:
        raise AttributeError(f"module 'zonebloom' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def warmup() -> None:
    """Compile every kernel now, or load it from the cache, instead of at its first use.

    >>> zb.warmup()
    """
    import gc

    from zonebloom.sbbf.kernel_loader import KERNELS

    KERNELS.load()
    # The kernels are so many objects that Python would soon collect all garbage, which takes 0.2 s.
    # Let that not happen in a lookup.
    gc.collect()
