"""Read rows of an opened dataset: by a filter, by address, by position, or by keys.

`zonebloom.Dataset` and the command line call these functions. They do not import
``pyarrow.dataset``, which would slow down the start of a process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base import arguments
from zonebloom.base.row_ranges import OFFSET_BITS, RowRanges
from zonebloom.base.threads import thread_pool
from zonebloom.errors import InvalidArgument
from zonebloom.predicates import Predicate
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.plan import Request
from zonebloom.scan.planner import plan_addresses
from zonebloom.scan.recheck import Columns, gather, project
from zonebloom.scan.scanner import Scanner

if TYPE_CHECKING:
    import polars as pl

    from zonebloom.scan.locate import KeyLocations


class ArrowExport(Protocol):
    """An object that exports its values to Arrow, such as a Polars Series."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


# A sequence contains DNF tuples, or filters that must all match.
Filter: TypeAlias = "str | pc.Expression | Sequence[Any] | pl.Expr | Predicate | None"
KeysLike: TypeAlias = pa.Array | pa.ChunkedArray | Iterable[Any] | ArrowExport
KeyTableLike: TypeAlias = pa.Table | Mapping[str, KeysLike] | ArrowExport
RowsLike: TypeAlias = Sequence[int] | np.ndarray | pa.Array | pa.ChunkedArray | pa.Table


def count_all_rows(opened: OpenedDataset) -> int:
    """Return the number of rows without reading them, by the metadata of the files."""
    snapshot = opened.look_at_all_files()
    fragments = snapshot.fragments
    with thread_pool(opened.source.store.num_threads) as pool:
        num_stored = sum(pool.map(snapshot.count_rows_in_file, fragments))
    return num_stored - sum(len(file.fragment.deleted_rows) for file in fragments)


def addresses_of_positions(opened: OpenedDataset, positions: Any) -> np.ndarray:
    """Return the addresses of rows by position: rows are counted over all files in scan order.

    Rows that a table has deleted are not counted.
    """
    snapshot = opened.look_at_all_files()
    files = snapshot.fragments
    # The offsets of the rows that the table has not deleted, for each file.
    rows_of_files = [
        RowRanges([(0, snapshot.count_rows(file))]) - file.fragment.deleted_rows for file in files
    ]
    first_positions = np.cumsum([0, *map(len, rows_of_files)])
    num_rows = int(first_positions[-1])
    rows = arguments.require_integers(positions, "indices", num_rows - 1).astype(np.int64)
    file_numbers = first_positions.searchsorted(rows, side="right") - 1
    addresses = rows - first_positions[file_numbers]
    for number in np.unique(file_numbers).tolist():
        is_in_file = file_numbers == number
        offsets = rows_of_files[number].rows_at(addresses[is_in_file])
        addresses[is_in_file] = (files[number].fragment_id << OFFSET_BITS) + offsets
    return addresses


def take_rows(opened: OpenedDataset, rows: Any, columns: Columns) -> pa.Table:
    """Return rows by address, or the rows that a table returned by `locate` refers to."""
    request = Request(opened.binding.checked_columns(columns), None)
    addresses = _addresses(rows)
    plan, addresses_in_scan_order = plan_addresses(opened.look_at_all_files(), addresses)
    table = Scanner(opened, request, plan).to_table()
    order = np.argsort(addresses_in_scan_order)
    positions = np.searchsorted(addresses_in_scan_order, addresses, sorter=order)
    return gather(table, order[positions])


def _addresses(rows: Any) -> np.ndarray:
    if isinstance(rows, pa.Table | pa.RecordBatch):
        from zonebloom.scan.locate import select_key_columns

        names = ("fragment_id", "row")
        locations = pa.table(dict(zip(names, select_key_columns(rows, names), strict=True)))
        # Keys that do not exist have null locations.
        fragment_ids, offsets = locations.drop_null().columns
        fragment_ids = arguments.require_integers(fragment_ids, "rows").astype(np.int64)
        return (fragment_ids << OFFSET_BITS) + offsets.to_numpy()
    return arguments.require_integers(rows, "rows").astype(np.int64)


def look_up(
    opened: OpenedDataset,
    column: str | Sequence[str],
    keys: KeysLike | KeyTableLike,
    columns: Sequence[str] | None = None,
    *,
    nulls: bool = False,
) -> pa.Table:
    """Return the rows that hold one of the keys; see `Dataset.lookup`."""
    from zonebloom.scan.lookup import lookup_keys

    if isinstance(columns, Mapping):
        raise arguments.invalid_value(columns, "columns", "give a list of names")
    source, projection = opened.source, opened.binding.checked_columns(columns)
    if projection is None:
        projection = source.schema.names
    if "key_index" in projection:
        raise InvalidArgument(
            "a lookup returns the position of the key as 'key_index', and the dataset has a column "
            "of that name; name other columns in columns"
        )
    if isinstance(column, list | tuple):
        return _look_up_tuples(opened, column, keys, columns, nulls=nulls)
    column = arguments.require_text(column, "column")
    nulls = arguments.require_bool(nulls, "nulls")
    key_column = opened.key_column(column)
    if not isinstance(projection, dict):
        return lookup_keys(opened, key_column, keys, projection, nulls)
    # Some names are those of fields of structs. Read the structs.
    top_level_names = set(source.schema.names)
    names = [name if name in top_level_names else name.partition(".")[0] for name in projection]
    names = list(dict.fromkeys(names))
    rows = lookup_keys(opened, key_column, keys, names, nulls)
    key_index = rows.schema.field(0)
    return project(rows.remove_column(0), projection).add_column(0, key_index, rows.column(0))


def _look_up_tuples(
    opened: OpenedDataset,
    key_columns: Sequence[str],
    keys: Any,
    columns: Sequence[str] | None,
    *,
    nulls: bool,
) -> pa.Table:
    """Return the rows whose columns equal keys of several columns."""
    if nulls:
        raise InvalidArgument("nulls=True is for keys of one column; leave it out")
    locations = key_locations(opened, key_columns, keys).by_key().drop_null()
    # The numbers of the files are in scan order.
    files = locations["path"].combine_chunks()
    file_numbers = pa.concat_arrays([chunk.indices for chunk in pa.chunked_array(files).chunks])
    order = np.lexsort((locations["row"].to_numpy(), file_numbers.to_numpy()))
    locations = locations.take(pa.array(order))
    rows = take_rows(opened, locations, columns)
    return rows.add_column(0, locations.schema.field("key_index"), locations["key_index"])


def key_locations(
    opened: OpenedDataset,
    columns: str | Sequence[str],
    keys: KeysLike | KeyTableLike,
    filters: Sequence[Any] = (None,),
) -> KeyLocations:
    """Return the locations of keys in one column, or in several that must all be equal.

    The rows must match all filters, too.
    """
    from zonebloom.scan.locate import locate_keys, select_key_columns

    names = arguments.require_key_names(columns, "columns")
    key_columns = [opened.key_column(name) for name in names]
    values = [keys] if isinstance(columns, str) else select_key_columns(keys, names)
    return locate_keys(opened, key_columns, values, filters)
