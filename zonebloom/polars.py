"""Scan a dataset as a Polars LazyFrame whose filters skip zones.

A scan of a path lists the files again for each query, because nobody else can refresh its dataset.
"""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any

from zonebloom.errors import InvalidArgument
from zonebloom.facade.dataset import Dataset, require_no_filter
from zonebloom.facade.opening import dataset
from zonebloom.lazy_frame import lazy_frame
from zonebloom.parquet.encryption_keys import ParquetKeys
from zonebloom.sources.discovery import Partitioning, Schema
from zonebloom.sources.source import Stale
from zonebloom.storage.encryption import Encryption

if TYPE_CHECKING:
    import polars as pl

__all__ = ["scan"]


def __dir__() -> list[str]:
    return __all__


def scan(
    source: Any,
    *,
    format: str = "parquet",
    filesystem: Any = None,
    index_dir: str | None = None,
    partitioning: Partitioning = "auto",
    stale: Stale = "read",
    embedded_filters: bool = False,
    schema: Schema = None,
    encryption: Encryption | None = None,
    parquet_keys: ParquetKeys | None = None,
) -> pl.LazyFrame:
    """Return a lazy scan of a dataset.

    Parameters
    ----------
    source : Dataset, or any source that `zonebloom.dataset` takes
    format, filesystem, index_dir, partitioning, stale, embedded_filters, schema, encryption, \
    parquet_keys
        As in `zonebloom.dataset`. They cannot be given together with a Dataset, which is already
        open.

    Returns
    -------
    polars.LazyFrame
        With the rows, order and types of ``pl.scan_parquet``. If an index can answer a filter, only
        the zones that may match are read; `explain` shows how many.

    Raises
    ------
    MissingDependency
        If Polars is not installed, or is older than 2.0.
    InvalidArgument
        If a Dataset is given together with options that say how to open one, or if it has a filter
        of its own (`Dataset.filter`).
    NoFragments, FragmentUnreadable, SourceError

    Examples
    --------
    >>> import polars as pl
    >>> import zonebloom.polars
    >>> frame = zonebloom.polars.scan("orders").filter(pl.col("id") == 42)
    >>> frame.collect().rows()
    [(42, 'C042', datetime.date(2024, 5, 2))]
    """
    is_path = isinstance(source, str | os.PathLike)
    ds = _open_dataset(
        source,
        format=format,
        filesystem=filesystem,
        index_dir=index_dir,
        partitioning=partitioning,
        stale=stale,
        embedded_filters=embedded_filters,
        schema=schema,
        encryption=encryption,
        parquet_keys=parquet_keys,
    )
    require_no_filter(ds, "zonebloom.polars.scan")
    return lazy_frame(ds, is_listed_again=is_path)


def _open_dataset(source: Any, **options: Any) -> Dataset:
    """Open a source with options of `dataset`, or return a dataset that is already open."""
    if not isinstance(source, Dataset):
        return dataset(source, **options)
    parameters = inspect.signature(dataset).parameters
    names = [name for name, value in options.items() if value is not parameters[name].default]
    if names:
        raise InvalidArgument(
            f"the dataset is open already; give {', '.join(names)} to zonebloom.dataset"
        )
    return source
