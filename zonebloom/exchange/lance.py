"""Exchange of bloomfilter tables with Lance: the same rows as a ``bloomfilter.lance`` file.

Lance may add ``null_bitmap``, the buffer of that file with the addresses of null rows; without
it IS NULL is answered from ``has_null``, so the key is neither written nor kept.
"""

from __future__ import annotations

import importlib
import os
import posixpath
import shutil
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.errors import (
    ColumnNotFound,
    CorruptIndex,
    IndexExists,
    InvalidArgument,
    MissingDependency,
)
from zonebloom.index.rows import RowTable
from zonebloom.index.table import FIELDS, ITEM_KEY, PROBABILITY_KEY, ZoneTable, table_schema

__all__ = ["commit_to_lance", "from_lance", "to_lance"]

FILE_NAME = "bloomfilter.lance"

_DETAILS = ("/lance.index.pb.BloomFilterIndexDetails", b"")


def to_lance(tables: ZoneTable | Sequence[ZoneTable], path: str | os.PathLike[str]) -> int:
    """Write tables of one index as the file Lance keeps a BLOOMFILTER index in.

    Parameters
    ----------
    tables : Table or sequence of them
        The segments of one index: built with the same parameters, over different fragments.
    path : str or path
        The file; Lance looks for ``_indices/<uuid>/bloomfilter.lance`` in its dataset.

    Returns
    -------
    int
        Bytes written.

    Raises
    ------
    InvalidArgument
        When the tables are not of one index.
    MissingDependency
        Without pylance.

    Examples
    --------
    >>> from zonebloom.exchange.lance import to_lance
    >>> to_lance(ds.opened.planner.loaded["id_idx"].tables(), "bloomfilter.lance") > 30 * 256
    True
    """
    files = _pylance().file
    joined = [tables] if isinstance(tables, ZoneTable) else list(tables)
    items, probability = _shared_parameters(joined)
    _require_disjoint(joined)
    try:
        writer = files.LanceFileWriter(os.fspath(path), table_schema(items, probability))
        with writer:
            for table in joined:
                for batch in table.batches():
                    writer.write_batch(batch)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot write {path} ({error}); give a path to write to") from None
    return int(writer.size_bytes or 0)


def from_lance(path: str | os.PathLike[str]) -> RowTable:
    """Read the file of a BLOOMFILTER index of Lance.

    Returns
    -------
    RowTable
        In memory. Its fragment ids are those of the Lance dataset.

    Raises
    ------
    CorruptIndex
        When the file is missing or holds no bloomfilter table.
    MissingDependency
        Without pylance.

    Examples
    --------
    >>> from zonebloom.exchange.lance import from_lance
    >>> ds.index_to_lance("id_idx", "bloomfilter.lance")
    >>> from_lance("bloomfilter.lance").to_table().num_rows
    30
    """
    files = _pylance().file
    where = os.fspath(path)
    sink = pa.BufferOutputStream()
    try:
        reader = files.LanceFileReader(where)
        schema = reader.metadata().schema
        if not schema.remove_metadata().equals(FIELDS):
            raise ValueError(f"its columns are {', '.join(schema.names)}")
        metadata = schema.metadata or {}
        ours = {key: metadata[key] for key in (ITEM_KEY, PROBABILITY_KEY) if key in metadata}
        with pa.ipc.new_file(sink, schema.with_metadata(ours)) as writer:
            for batch in reader.read_all().to_batches():
                writer.write_batch(batch.replace_schema_metadata(ours))
    except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
        raise CorruptIndex(
            f"{where} is not a bloomfilter table of Lance ({error}); check the path, or build the "
            "index in Lance again"
        ) from None
    return RowTable(sink.getvalue(), where)


def commit_to_lance(
    dataset: Any,
    column: str,
    tables: ZoneTable | Sequence[ZoneTable],
    name: str | None = None,
) -> Any:
    """Give a Lance dataset an index zonebloom built over the same rows.

    Parameters
    ----------
    dataset : lance.LanceDataset
        With fragments of the same ids and rows.
    column : str
    tables : Table or sequence of them
        As of `to_lance`; of whole fragments.
    name : str, optional
        ``<column>_idx`` by default.

    Returns
    -------
    lance.LanceDataset
        At the version that has the index.

    Raises
    ------
    ColumnNotFound, IndexExists
    InvalidArgument
        When the tables are not of one index, or cover a fragment in part.
    MissingDependency
        Without pylance.

    Examples
    --------
    >>> import lance
    >>> from zonebloom.exchange.lance import commit_to_lance
    >>> same = lance.write_dataset(table, "orders.lance", max_rows_per_file=1000)
    >>> same = commit_to_lance(same, "id", ds.opened.planner.loaded["id_idx"].tables())
    >>> "ScalarIndexQuery" in same.scanner(filter="id = 42").explain_plan()
    True
    """
    lance = _pylance()
    joined = [tables] if isinstance(tables, ZoneTable) else list(tables)
    name = name or f"{column}_idx"
    if any(index.name == name for index in dataset.describe_indices()):
        raise IndexExists(
            f"the Lance dataset has an index {name!r} already; drop it, or give another name"
        )
    lance_field = dataset.lance_schema.field(column)
    if lance_field is None:
        known = arguments.suggest_names(column, dataset.schema.names, "the Lance dataset has")
        raise ColumnNotFound(f"there is no column {column!r}; {known}")
    fragment_ids = _require_whole_fragments(joined, dataset)

    index_id = str(uuid.uuid4())
    folder = posixpath.join(dataset.uri, "_indices", index_id)
    if "://" not in folder:
        os.makedirs(folder)
    try:
        to_lance(joined, posixpath.join(folder, FILE_NAME))
        index = lance.Index(
            uuid=index_id,
            name=name,
            fields=[lance_field.id()],
            dataset_version=dataset.version,
            fragment_ids=fragment_ids,
            index_version=0,
            index_details=_DETAILS,
        )
        operation = lance.LanceOperation.CreateIndex(new_indices=[index], removed_indices=[])
        return lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
    except BaseException:
        if "://" not in folder:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _pylance() -> Any:
    # By name: to a type checker, `import lance` in this file is this file.
    try:
        importlib.import_module("lance.file")
        return importlib.import_module("lance")
    except ModuleNotFoundError:
        raise MissingDependency(
            "Lance files need pylance; run: pip install 'zonebloom[lance]'"
        ) from None


def _shared_parameters(tables: Sequence[ZoneTable]) -> tuple[int, float]:
    pairs = sorted({(table.number_of_items, table.probability) for table in tables})
    if len(pairs) != 1:
        raise InvalidArgument(
            f"the tables have {len(pairs)} different parameters (number_of_items, probability) "
            f"{pairs}; give one or more tables of one index"
        )
    return pairs[0]


def _require_disjoint(tables: Sequence[ZoneTable]) -> None:
    ids = np.concatenate([np.unique(table.fragment_ids) for table in tables])
    if np.unique(ids).size != ids.size:
        raise InvalidArgument(
            "two of the tables hold zones of the same fragment; give tables of one index, once each"
        )


def _require_whole_fragments(tables: Sequence[ZoneTable], dataset: Any) -> set[int]:
    rows = {each.fragment_id: each.physical_rows for each in dataset.get_fragments()}
    indexed: set[int] = set()
    for table in tables:
        for fragment_id in np.unique(table.fragment_ids).tolist():
            zones = table.fragment_ids == fragment_id
            stops = np.cumsum(table.lengths[zones])
            here = rows.get(fragment_id, "no such fragment")
            is_whole = np.array_equal(table.starts[zones], stops - table.lengths[zones])
            if not is_whole or stops[-1] != here:
                raise InvalidArgument(
                    f"the table's zones hold {stops[-1]:,} rows of fragment {fragment_id}, the "
                    f"Lance dataset has {here}; build the table over the dataset's own fragments"
                )
            indexed.add(fragment_id)
    return indexed
