"""The catalog entries of fragments as a table, because there may be very many.

A `KnownFragment` for each of 100,000 files takes half a second and 80 MB. Lookups by Spark compare
whole columns, and never need these objects.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.base.arrays import from_numpy, to_numpy
from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT
from zonebloom.catalog.model import KnownFragment
from zonebloom.storage.files import FileIdentity

IDENTITY_FIELDS = ("size", "mtime_ns", "ctime_ns", "tag", "inode")
LISTING_SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in {
            "fragment_id": pa.uint64(),
            "key": pa.string(),
            "size": pa.int64(),
            "mtime_ns": pa.int64(),
            "num_rows": pa.int64(),
            "ctime_ns": pa.int64(),
            "tag": pa.string(),
            "inode": pa.uint64(),
            "digest": pa.string(),
            "seen_at": pa.int64(),
            "footer": pa.string(),
        }.items()
    ]
)


class FragmentTable(Mapping[str, KnownFragment]):
    """A mapping from keys to catalog entries, which are made when the first of them is needed.

    Attributes
    ----------
    table : pyarrow.Table
        A table of `LISTING_SCHEMA`. Each key is in one row.
    """

    def __init__(self, parts: Sequence[pa.Table]):
        """Make a mapping from the rows of listings. The last row of a key counts."""
        table = pa.concat_tables(parts) if parts else LISTING_SCHEMA.empty_table()
        if len(parts) > 1:
            table = _with_last_rows(table)
        self.table: pa.Table = table.combine_chunks()

    def __repr__(self) -> str:
        return f"<FragmentTable of {len(self):,} files>"

    def __getitem__(self, key: str) -> KnownFragment:
        return self._fragments[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fragments)

    def __len__(self) -> int:
        return self.table.num_rows

    def get(self, key: str, default: Any = None) -> Any:
        # The method of the base class is slower, because it catches the error of a missing key.
        return self._fragments.get(key, default)

    @cached_property
    def _fragments(self) -> dict[str, KnownFragment]:
        return {fragment.key: fragment for fragment in self.fragments_at(None)}

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of each key in the table."""
        return {key: row for row, key in enumerate(self.table["key"].to_pylist())}

    def fragments_at(self, rows: np.ndarray | None) -> Iterator[KnownFragment]:
        """Yield the entries in some rows of the table, or in all rows."""
        table = self.table if rows is None else self.table.take(from_numpy(rows))
        columns = {name: table[name].to_pylist() for name in table.column_names}
        identity_columns = [columns.pop(name) for name in IDENTITY_FIELDS]
        identities = itertools.starmap(FileIdentity, zip(*identity_columns, strict=True))
        ids, keys, num_rows, *rest = columns.values()
        return map(KnownFragment, ids, keys, identities, num_rows, *rest)

    def numbers(self, name: str) -> np.ndarray:
        """Return a column of numbers."""
        return to_numpy(self.table[name])

    def texts(self, name: str) -> pa.StringArray:
        """Return a column of texts."""
        column = self.table[name]
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def fragment_table(fragments: Mapping[str, KnownFragment]) -> FragmentTable:
    """Return catalog entries as a table."""
    if isinstance(fragments, FragmentTable):
        return fragments
    columns = columns_of_fragments(list(fragments.values()))
    return FragmentTable([pa.table(columns, schema=LISTING_SCHEMA)])


def columns_of_fragments(fragments: Sequence[KnownFragment]) -> list[pa.Array]:
    """Return the columns of `LISTING_SCHEMA` for catalog entries."""
    columns = []
    for name, kind in zip(LISTING_SCHEMA.names, LISTING_SCHEMA.types, strict=True):
        owners: Sequence[Any] = fragments
        if name in IDENTITY_FIELDS:
            owners = [fragment.identity for fragment in fragments]
        columns.append(pa.array([getattr(owner, name) for owner in owners], kind))
    return columns


def require_consistent(table: pa.Table) -> None:
    """Raise ValueError if a listing names a file twice, or has an impossible number of rows."""
    counts = to_numpy(table["num_rows"])
    has_row_counts = bool(((counts >= 0) & (counts <= MAX_ROWS_PER_FRAGMENT)).all())
    # Arrow's own function would import `pyarrow.compute`, which takes longer than a short listing.
    if len(set(table["key"].to_pylist())) < table.num_rows or not has_row_counts:
        raise ValueError("it lists a file twice, or an impossible number of rows")


def _with_last_rows(table: pa.Table) -> pa.Table:
    """Return the table with the last row of each key only, in the order of the first rows."""
    last_rows = {key: row for row, key in enumerate(table["key"].to_pylist())}
    if len(last_rows) == table.num_rows:
        return table
    return table.take(pa.array(list(last_rows.values()), pa.int64()))
