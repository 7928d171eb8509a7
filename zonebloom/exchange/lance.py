"""Write and read the tables of an index as Lance's ``bloomfilter.lance`` or ``zonemap.lance``.

In a zone map of Lance, ``max`` is NaN if the zone holds NaN. For types that it does not compare,
such as fixed-size binary, both bounds are null. These are read as bounds that are not known.

Lance may add a ``null_bitmap`` to the schema metadata, which names a buffer in that file with the
addresses of null rows. Without it, IS NULL is answered from ``has_null``, so this key is neither
written nor kept. All functions raise `MissingDependency` if pylance is not installed.
"""

from __future__ import annotations

import importlib
import os
import posixpath
import shutil
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base import arguments
from zonebloom.errors import (
    ColumnNotFound,
    CorruptIndex,
    IndexExists,
    InvalidArgument,
    MissingDependency,
)
from zonebloom.index.table import IndexTable
from zonebloom.index.zone_bloom.kind import require_row_tables
from zonebloom.index.zone_bloom.rows import (
    FIELDS,
    ITEM_KEY,
    PROBABILITY_KEY,
    RowTable,
    table_schema,
)
from zonebloom.index.zone_map.bounds import ROWS_KEY, ZoneMapTable, zone_map_schema
from zonebloom.index.zone_map.kind import require_zone_maps

__all__ = ["commit_to_lance", "from_lance", "to_lance"]

FILE_NAME = "bloomfilter.lance"
ZONE_MAP_FILE_NAME = "zonemap.lance"

_DETAILS = ("/lance.index.pb.BloomFilterIndexDetails", b"")
_ZONE_MAP_DETAILS = ("/lance.table.ZoneMapIndexDetails", b"")


def to_lance(tables: IndexTable | Sequence[IndexTable], path: str | os.PathLike[str]) -> int:
    """Write the tables of one index as the file of a BLOOMFILTER or ZONEMAP index of Lance.

    Parameters
    ----------
    tables : IndexTable or sequence of them
        The segments of one index: built with the same parameters, over different fragments.
    path : str or path
        The file to write. Lance looks for ``_indices/<uuid>/bloomfilter.lance``, or
        ``zonemap.lance``, in its dataset.

    Returns
    -------
    int
        The number of bytes written.

    Raises
    ------
    InvalidArgument
        If the tables do not belong to one index, or Lance has no such kind.

    Examples
    --------
    >>> from zonebloom.exchange.lance import to_lance
    >>> tables = ds.opened.indices["id_idx"].tables()
    >>> to_lance(tables, "bloomfilter.lance") > 30 * 256
    True
    """
    files = _pylance().file
    segments = [tables] if isinstance(tables, IndexTable) else tables
    schema, batches = _content(segments)
    _require_disjoint(segments)
    try:
        writer = files.LanceFileWriter(os.fspath(path), schema)
        with writer:
            for batch in batches:
                writer.write_batch(batch)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot write {path} ({error}); give a path to write to") from None
    return int(writer.size_bytes or 0)


def _content(segments: Sequence[IndexTable]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema and the batches of a file of Lance."""
    if segments and all(isinstance(table, ZoneMapTable) for table in segments):
        parts = [_zone_map_of_lance(table.content) for table in require_zone_maps(segments)]
        schema = parts[0].schema
        if any(not part.schema.equals(schema, check_metadata=True) for part in parts):
            raise InvalidArgument("the tables have different schemas; give tables of one index")
        return schema, (batch for part in parts for batch in part.to_batches())
    zone_tables = require_row_tables(segments)
    schema = table_schema(*_shared_parameters(zone_tables))
    return schema, (batch for table in zone_tables for batch in table.batches())


def _zone_map_of_lance(content: pa.Table) -> pa.Table:
    """Return the content of a zone map with Lance's bounds of zones that hold NaN."""
    least, greatest = content["min"], content["max"]
    is_unknown = pc.call_function("and", [least.is_valid(), greatest.is_null()])
    if pc.call_function("any", [is_unknown]).as_py():
        raise InvalidArgument("a zone holds text that is not UTF-8, which Lance cannot compare")
    if not pa.types.is_floating(greatest.type):
        return content
    has_nan = pc.call_function("greater", [content["nan_count"], pa.scalar(0, pa.uint32())])
    nan = pa.scalar(float("nan"), greatest.type)
    greatest = pc.call_function("if_else", [has_nan, nan, greatest])
    return content.set_column(1, content.schema.field("max"), greatest)


def from_lance(path: str | os.PathLike[str]) -> RowTable | ZoneMapTable:
    """Read the file of a BLOOMFILTER or ZONEMAP index of Lance.

    Returns
    -------
    RowTable or ZoneMapTable
        In memory, with the fragment ids of the Lance dataset.

    Raises
    ------
    CorruptIndex
        If the file is missing or is not a file of such an index.

    Examples
    --------
    >>> from zonebloom.exchange.lance import from_lance
    >>> ds.index_to_lance("id_idx", "bloomfilter.lance")
    >>> from_lance("bloomfilter.lance").to_table().num_rows
    30
    """
    files = _pylance().file
    name = os.fspath(path)
    sink = pa.BufferOutputStream()
    try:
        reader = files.LanceFileReader(name)
        schema = reader.metadata().schema
        if ROWS_KEY in (schema.metadata or {}):
            return _read_zone_map(reader.read_all().to_table(), schema, name)
        if not schema.remove_metadata().equals(FIELDS):
            raise ValueError(f"its columns are {', '.join(schema.names)}")
        metadata = schema.metadata or {}
        parameters = {key: metadata[key] for key in (ITEM_KEY, PROBABILITY_KEY) if key in metadata}
        with pa.ipc.new_file(sink, schema.with_metadata(parameters)) as writer:
            for batch in reader.read_all().to_batches():
                writer.write_batch(batch.replace_schema_metadata(parameters))
    except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
        raise CorruptIndex(
            f"{name} is not a bloomfilter table of Lance ({error}); check the path, or build the "
            "index in Lance again"
        ) from None
    return RowTable(sink.getvalue(), name)


def _read_zone_map(content: pa.Table, schema: pa.Schema, name: str) -> ZoneMapTable:
    greatest = content["max"]
    if pa.types.is_floating(greatest.type):
        is_nan = pc.call_function("is_nan", [greatest])
        greatest = pc.call_function("if_else", [is_nan, pa.scalar(None, greatest.type), greatest])
        content = content.set_column(1, "max", greatest)
    expected = zone_map_schema(greatest.type, int(schema.metadata[ROWS_KEY]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, expected) as writer:
        writer.write_table(content.select(expected.names).cast(expected))
    return ZoneMapTable(sink.getvalue(), name)


def commit_to_lance(
    dataset: Any,
    column: str,
    tables: IndexTable | Sequence[IndexTable],
    name: str | None = None,
) -> Any:
    """Add an index that zonebloom built over the same rows to a Lance dataset.

    Parameters
    ----------
    dataset : lance.LanceDataset
        A dataset whose fragments have the same ids and rows.
    column : str
    tables : IndexTable or sequence of them
        As in `to_lance`. They must cover whole fragments.
    name : str, optional
        ``<column>_idx`` by default.

    Returns
    -------
    lance.LanceDataset
        The dataset at the version that has the index.

    Raises
    ------
    ColumnNotFound, IndexExists
    InvalidArgument
        If the tables do not belong to one index of a kind that Lance has, or cover only a part of
        a fragment.

    Examples
    --------
    >>> import lance
    >>> from zonebloom.exchange.lance import commit_to_lance
    >>> same = lance.write_dataset(table, "orders.lance", max_rows_per_file=1000)
    >>> same = commit_to_lance(same, "id", ds.opened.indices["id_idx"].tables())
    >>> "ScalarIndexQuery" in same.scanner(filter="id = 42").explain_plan()
    True
    """
    lance = _pylance()
    segments = [tables] if isinstance(tables, IndexTable) else list(tables)
    is_zone_map = bool(segments) and isinstance(segments[0], ZoneMapTable)
    name = name or f"{column}_idx"
    if any(index.name == name for index in dataset.describe_indices()):
        raise IndexExists(
            f"the Lance dataset has an index {name!r} already; drop it, or give another name"
        )
    lance_field = dataset.lance_schema.field(column)
    if lance_field is None:
        columns = arguments.suggest_names(column, dataset.schema.names, "the Lance dataset has")
        raise ColumnNotFound(f"there is no column {column!r}; {columns}")
    fragment_ids = _require_whole_fragments(segments, dataset)

    index_id = str(uuid.uuid4())
    folder = posixpath.join(dataset.uri, "_indices", index_id)
    if "://" not in folder:
        os.makedirs(folder)
    try:
        file_name = ZONE_MAP_FILE_NAME if is_zone_map else FILE_NAME
        to_lance(segments, posixpath.join(folder, file_name))
        index = lance.Index(
            uuid=index_id,
            name=name,
            fields=[lance_field.id()],
            dataset_version=dataset.version,
            fragment_ids=fragment_ids,
            index_version=0,
            index_details=_ZONE_MAP_DETAILS if is_zone_map else _DETAILS,
        )
        operation = lance.LanceOperation.CreateIndex(new_indices=[index], removed_indices=[])
        return lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
    except BaseException:
        if "://" not in folder:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _pylance() -> Any:
    # Import by name, because a type checker takes `import lance` in this file for this file.
    try:
        importlib.import_module("lance.file")
        return importlib.import_module("lance")
    except ModuleNotFoundError:
        raise MissingDependency(
            "Lance files need pylance; run: pip install 'zonebloom[lance]'"
        ) from None


def _shared_parameters(tables: Sequence[RowTable]) -> tuple[int, float]:
    pairs = sorted({(table.number_of_items, table.probability) for table in tables})
    if len(pairs) != 1:
        raise InvalidArgument(
            f"the tables have {len(pairs)} different parameters (number_of_items, probability) "
            f"{pairs}; give one or more tables of one index"
        )
    return pairs[0]


def _require_disjoint(tables: Sequence[IndexTable]) -> None:
    ids = np.concatenate([np.unique(table.fragment_ids) for table in tables])
    if np.unique(ids).size != ids.size:
        raise InvalidArgument(
            "two of the tables hold zones of the same fragment; give tables of one index, once each"
        )


def _require_whole_fragments(tables: Sequence[IndexTable], dataset: Any) -> set[int]:
    """Return the fragment ids of tables. Raise if zones cover only a part of a fragment."""
    rows = {fragment.fragment_id: fragment.physical_rows for fragment in dataset.get_fragments()}
    fragment_ids: set[int] = set()
    for table in tables:
        for fragment_id in np.unique(table.fragment_ids).tolist():
            zones = table.fragment_ids == fragment_id
            stops = np.cumsum(table.lengths[zones])
            num_rows = rows.get(fragment_id, "no such fragment")
            has_no_gaps = np.array_equal(table.starts[zones], stops - table.lengths[zones])
            if not has_no_gaps or stops[-1] != num_rows:
                raise InvalidArgument(
                    f"the table's zones hold {stops[-1]:,} rows of fragment {fragment_id}, the "
                    f"Lance dataset has {num_rows}; build the table over the dataset's own "
                    "fragments"
                )
            fragment_ids.add(fragment_id)
    return fragment_ids
