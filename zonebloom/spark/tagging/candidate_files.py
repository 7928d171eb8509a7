"""Which files may hold keys, by ranges and filters alone: no data is read.

Each Spark task takes its keys through the indices in batches, opened in its own process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sf

from zonebloom.catalog.coverage import Coverage
from zonebloom.catalog.model import Version
from zonebloom.catalog.store import Catalog
from zonebloom.dataset import Dataset
from zonebloom.errors import FragmentChanged, IndexNotFound, UnsupportedType
from zonebloom.scan.planner import Planner
from zonebloom.spark.tagging.keys import KeyColumns, holds_old_times
from zonebloom.spark.tagging.plan import Search
from zonebloom.spark.workers.failures import told
from zonebloom.spark.workers.sealed import Sealed
from zonebloom.storage.source import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BATCH_KEYS = 1 << 16
_DDL = "file bigint, num_keys bigint, zones array<bigint>"
_SCHEMA = pa.schema(
    [("file", pa.int64()), ("num_keys", pa.int64()), ("zones", pa.list_(pa.int64()))]
)


def ask(keys: DataFrame, columns: KeyColumns, ds: Dataset) -> DataFrame:
    """Files that may hold a key, with how many keys and rows it may be."""
    search = Search(ds, columns)
    indexed = search.indexed
    if not indexed and columns.instants:
        raise UnsupportedType(
            f"{', '.join(columns.instants)} is INT96, which Spark reads as other values than an "
            "index holds, so no index is asked; leave exact=True, or write the files anew with "
            "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS and index them"
        )
    if not indexed:
        raise IndexNotFound(
            f"there is no index to ask on {', '.join(columns.names)}; make one with "
            "create_scalar_index, or leave exact=True to read the key columns"
        )
    if holds_old_times(keys, columns):
        raise UnsupportedType(
            "keys hold days before 1582-10-15 or times before 1902, which files may hold in "
            "another calendar than an index knows; leave exact=True, which looks into the files"
        )
    search.require_same_case()
    asking = _Asking(
        ds.opened.source, ds.opened.catalog, ds.opened.version, columns.names, tuple(indexed)
    )
    spark = keys.sparkSession
    # Not dropna, which drops NaN too.
    given = reduce(and_, [sf.col(field.name).isNotNull() for field in columns.fields])
    probes = keys.select(*columns.probes).where(given).distinct()
    found = probes.mapInArrow(_worker(asking, search), _DDL)
    zones = sf.array_distinct(sf.flatten(sf.collect_list("zones")))
    rows = found.groupBy("file").agg(sf.sum("num_keys").alias("num_keys"), zones.alias("zones"))
    try:
        answers = rows.collect()
    except Exception as error:
        cause = told(error)
        if cause is None:
            raise
        raise cause from error
    items = search.zone_rows
    made = []
    for answer in answers:
        fragment_id, num_rows = search.fragment(answer.file)
        # A zone of -1 stands for the whole file.
        most = None if -1 in answer.zones else len(answer.zones) * items
        rows_here = num_rows if most is None else min(most, num_rows)
        made.append((search.paths[answer.file], fragment_id, answer.num_keys, rows_here))
    ddl = "path string, fragment_id bigint, num_keys bigint, num_rows bigint"
    return spark.createDataFrame(made, ddl)


@dataclass(frozen=True)
class _Asking:
    """What a task needs to open the indices."""

    source: Source
    catalog: Catalog
    version: Version
    names: tuple[str, ...]
    indexed: tuple[str, ...]

    def planner(self) -> Planner:
        """Of the version the driver sees."""
        return Planner(self.source, self.catalog, self.version)


def _worker(
    asking: _Asking, search: Search
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # On a worker this is what it holds.
    sent: Any = Sealed((asking, search.fragments, search.listed, search.columns.schema.types))

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        asking, fragments, listed, types = sent
        planner = asking.planner()
        ids = np.array([fragment_id for _, fragment_id in listed], dtype=np.uint64)
        for batch in batches:
            for at in range(0, batch.num_rows, _BATCH_KEYS):
                keys = batch.slice(at, _BATCH_KEYS)
                held = fragments.count_keys(keys.columns, types)
                before = planner.coverage()
                _require_listed(before, before, listed)
                answers = list(_answers(asking, planner, keys, held, ids))
                _require_listed(before, planner.coverage(), listed)
                yield from answers

    return work


def _require_listed(before: Coverage, after: Coverage, listed: list[tuple[str, int]]) -> None:
    """Refuse answers unless every id was of the file the driver knows by it all the while.

    Ids of files that are not indexed go by their place: once one is gone, others have its id.
    """
    found = [(each.fragment.path, each.fragment_id) for each in before.present]
    if before is not after or found != listed:
        raise FragmentChanged("files came, went or changed while keys were asked for; call again")


def _answers(
    asking: _Asking,
    planner: Planner,
    keys: pa.RecordBatch,
    held: np.ndarray,
    ids: np.ndarray,
) -> Iterator[pa.RecordBatch]:
    order = np.argsort(ids)
    pairs: np.ndarray | None = None
    zones = np.empty(0, dtype=np.int64)
    for name in asking.indexed:
        with warnings.catch_warnings():
            # Of files that changed the driver has told.
            warnings.simplefilter("ignore")
            batches = list(planner.search_many(name, keys.column(asking.names.index(name))))
        table = pa.Table.from_batches(batches) if batches else None
        if table is None or not table.num_rows:
            return
        number = table["key_index"].to_numpy()
        at = np.searchsorted(ids[order], table["fragment_id"].to_numpy())
        # One that is not there is of files that changed: what it answers is refused.
        file = order[np.minimum(at, ids.size - 1)]
        found = number * ids.size + file
        if pairs is None:
            pairs, zones = found, table["zone"].fill_null(2**32 - 1).to_numpy().astype(np.int64)
        else:
            kept = np.isin(pairs, found)
            pairs, zones = pairs[kept], zones[kept]
    assert pairs is not None
    file = pairs % ids.size
    for each in np.unique(file).tolist():
        here = file == each
        if not held[each]:
            continue
        these = np.unique(zones[here])
        row = {
            "file": each,
            "num_keys": np.unique(pairs[here]).size,
            "zones": [-1] if 2**32 - 1 in these else these.tolist(),
        }
        yield pa.RecordBatch.from_pylist([row], schema=_SCHEMA)
