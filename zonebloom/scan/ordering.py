"""Sort the rows of a scan. With a limit, only the first rows are kept in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base import arguments
from zonebloom.base.arrays import empty_table, to_numpy
from zonebloom.errors import InvalidArgument
from zonebloom.scan.key_values import normalized_column
from zonebloom.scan.recheck import gather

Direction: TypeAlias = Literal["ascending", "descending"]
OrderBy: TypeAlias = "str | Sequence[str | tuple[str, Direction]] | None"

_DIRECTIONS = ("ascending", "descending")
# Rows are collected up to this number, or twice the limit, before the first ones are chosen.
_MIN_COLLECTED_ROWS = 1 << 17


class SortKey(NamedTuple):
    """A column of the result to sort by."""

    column: str
    direction: Direction


def checked_sort_keys(order_by: str | Sequence[Any]) -> tuple[SortKey, ...]:
    """Return the keys of an ``order_by``. Raise `InvalidArgument` if it has another form."""
    advice = 'give column names, or pairs such as ("day", "descending")'
    items = [order_by] if isinstance(order_by, str) else order_by
    if not isinstance(items, Sequence):
        raise arguments.invalid_value(order_by, "order_by", advice)
    keys: list[SortKey] = []
    for item in items:
        column, direction = (item, "ascending") if isinstance(item, str) else _pair(item)
        if not isinstance(column, str) or direction not in _DIRECTIONS:
            raise arguments.invalid_value(item, "a key of order_by", advice)
        keys.append(SortKey(column, direction))
    return tuple(keys)


def _pair(item: Any) -> tuple[Any, Any]:
    is_pair = isinstance(item, tuple | list) and len(item) == 2
    return (item[0], item[1]) if is_pair else (None, None)


def require_sortable(keys: Sequence[SortKey], schema: pa.Schema) -> None:
    """Raise `InvalidArgument` if PyArrow cannot sort by a column of a schema."""
    for key in keys:
        try:
            _sorted_rows(empty_table(schema), [key])
        except (pa.ArrowException, TypeError):
            raise InvalidArgument(
                f"rows cannot be sorted by column {key.column!r} of type "
                f"{schema.field(key.column).type}; sort by a number, a time or a text in it"
            ) from None


def sorted_batches(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    keys: Sequence[SortKey],
    max_rows: int | None,
    batch_size: int,
) -> Iterator[pa.RecordBatch]:
    """Yield rows in the order of some keys, at most ``max_rows`` of them.

    Rows with equal keys stay in the order of the scan. NaN follows the other numbers, and null
    comes last.
    """
    parts: list[pa.RecordBatch] = []
    num_rows = 0
    for batch in batches:
        parts.append(batch)
        num_rows += batch.num_rows
        if max_rows is not None and num_rows >= max(2 * max_rows, _MIN_COLLECTED_ROWS):
            parts = _first_rows(parts, schema, keys, max_rows).to_batches()
            num_rows = sum(part.num_rows for part in parts)
    yield from _first_rows(parts, schema, keys, max_rows).to_batches(max_chunksize=batch_size)


def _first_rows(
    batches: Sequence[pa.RecordBatch],
    schema: pa.Schema,
    keys: Sequence[SortKey],
    max_rows: int | None,
) -> pa.Table:
    table = pa.Table.from_batches(batches, schema)
    return gather(table, _sorted_rows(table, keys)[:max_rows]).combine_chunks()


def _sorted_rows(table: pa.Table, keys: Sequence[SortKey]) -> np.ndarray:
    """Return the numbers of the rows in the order of some keys, int64."""
    columns = [normalized_column(table, (key.column,)) for key in keys]
    names = list(map(str, range(len(keys))))
    sort_keys = [(name, key.direction) for name, key in zip(names, keys, strict=True)]
    options = pc.SortOptions(sort_keys)
    indices = pc.call_function("sort_indices", [pa.table(columns, names)], options)
    return to_numpy(indices).astype(np.int64)
