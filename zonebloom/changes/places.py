"""Say what an upsert or an erasure changes, and find these rows, file by file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.changes.key_test import KeyTest
from zonebloom.reading import key_locations
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.scanner import plan_scan

_NO_ROWS = np.empty(0, dtype=np.int64)
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


@dataclass(frozen=True)
class FileChange:
    """The rows of one file that are removed or replaced.

    Attributes
    ----------
    present : PresentFragment
    rows : int64 array, ascending
        The numbers of the rows in the file.
    batch_rows : int64 array
        The row of the batch that replaces each of them, or -1 if the row is removed.
    """

    present: PresentFragment
    rows: np.ndarray
    batch_rows: np.ndarray


@dataclass(frozen=True)
class Places:
    """The rows that a change touches, file by file.

    Attributes
    ----------
    changes : list of FileChange
    new_rows : int64 array
        The rows of the batch whose keys no row of the dataset has.
    """

    changes: list[FileChange]
    new_rows: np.ndarray = field(default_factory=lambda: _NO_ROWS)

    @property
    def num_changed_rows(self) -> int:
        return sum(change.rows.size for change in self.changes)


@dataclass(frozen=True)
class Change:
    """A request to erase or to upsert rows.

    Attributes
    ----------
    operation : {"erase", "upsert"}
    columns : tuple of str
        The columns of the keys; empty for an erasure by a filter.
    keys : object
        The keys of an erasure, or those of the rows of an upsert.
    filter : object
        The filter of an erasure, or None.
    rows : pyarrow.Table or None
        The rows of an upsert, with the columns that they change.
    updates, inserts : bool
        What an upsert does with rows whose keys exist, and with the others.
    """

    operation: Literal["erase", "upsert"]
    columns: tuple[str, ...] = ()
    keys: Any = None
    filter: Any = None
    rows: pa.Table | None = None
    updated_columns: tuple[str, ...] = ()
    updates: bool = True
    inserts: bool = True

    @property
    def given_columns(self) -> tuple[str, ...]:
        """The columns whose values in updated rows are those of the batch."""
        return self.columns + self.updated_columns

    @property
    def replacing_rows(self) -> pa.Table | None:
        """The columns of the batch that replace values of rows."""
        return None if self.rows is None else self.rows.select(list(self.updated_columns))


@dataclass(frozen=True)
class Work:
    """A change in terms of files.

    Attributes
    ----------
    changes : list of FileChange
        The files that are written anew.
    new_rows : int64 array
        The rows of the batch that new files get.
    num_inserted, num_updated, num_deleted : int
        Rows of the dataset.
    test : KeyTest or None
        The keys in the types of the dataset. None for a change by a filter.
    """

    changes: list[FileChange]
    new_rows: np.ndarray
    num_inserted: int
    num_updated: int
    num_deleted: int
    test: KeyTest | None = None

    @property
    def is_empty(self) -> bool:
        return not self.changes and not self.new_rows.size


def places_of_keys(opened: OpenedDataset, columns: Sequence[str], keys: Any) -> Places:
    """Return the rows with one of some keys, with the position of the key of each."""
    is_one = len(columns) == 1
    located = key_locations(opened, columns[0] if is_one else list(columns), keys)
    table = located.by_key()
    key_index = table.column("key_index").to_numpy()
    is_found = table.column("row").is_valid().to_numpy()
    ids = table.column("fragment_id").fill_null(0).to_numpy().astype(np.int64)
    rows = table.column("row").fill_null(0).to_numpy()
    places = Places([], np.unique(key_index[~is_found]))
    present = {file.fragment_id: file for file in located.present}
    _add_changes(places, present, ids[is_found], rows[is_found], key_index[is_found])
    return places


def places_of_filter(opened: OpenedDataset, filter: Any) -> Places:
    """Return the rows that match a filter."""
    snapshot = opened.look_at_all_files()
    scan = plan_scan(opened, [], (filter,), with_row_address=True)
    addresses = scan.to_table().column("_rowaddr").to_numpy().astype(np.int64)
    places = Places([])
    present = {file.fragment_id: file for file in snapshot.fragments}
    numbers = np.full(addresses.size, -1)
    _add_changes(places, present, addresses >> OFFSET_BITS, addresses & _OFFSET_MASK, numbers)
    return places


def _add_changes(
    places: Places,
    present: dict[int, PresentFragment],
    ids: np.ndarray,
    rows: np.ndarray,
    batch_rows: np.ndarray,
) -> None:
    order = np.lexsort((rows, ids))
    ids, rows, batch_rows = ids[order], rows[order], batch_rows[order]
    distinct_ids, starts = np.unique(ids, return_index=True)
    stops = [*starts[1:].tolist(), ids.size]
    for fragment_id, start, stop in zip(distinct_ids.tolist(), starts, stops, strict=False):
        part = rows[start:stop], batch_rows[start:stop]
        places.changes.append(FileChange(present[fragment_id], *part))
