"""Say what an upsert or an erasure changes, and find these rows, file by file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from zonebloom.base.progress import ProgressOption
from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.changes.key_test import RowTest
from zonebloom.errors import FragmentChanged
from zonebloom.reading import key_locations
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.scanner import plan_scan

OFFSET_MASK = (1 << OFFSET_BITS) - 1


@dataclass(frozen=True)
class FileChange:
    """The rows of one file that are removed or replaced.

    Attributes
    ----------
    present : PresentFragment
    rows : int64 array, ascending
        The numbers of the rows in the file.
    replacements : int64 array
        The row of the batch that replaces each of them, or -1 if the row is removed.
    """

    present: PresentFragment
    rows: np.ndarray
    replacements: np.ndarray

    def places_in(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of these rows among consecutive rows, and their replacements.

        ``numbers`` are the numbers of the consecutive rows in the file, without deleted rows.
        """
        start, stop = np.searchsorted(self.rows, [numbers[0], numbers[-1] + 1])
        return np.searchsorted(numbers, self.rows[start:stop]), self.replacements[start:stop]


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
    updated_columns : tuple of str
        The columns of the rows that replace values. Empty if rows with known keys stay.
    inserts : bool
        Whether rows with new keys are inserted.
    is_plan : bool
        Whether nothing is to be changed.
    summary : mapping of str to str
        What the user writes into the commit.
    progress : bool or callable
    """

    operation: Literal["erase", "upsert"]
    columns: tuple[str, ...] = ()
    keys: Any = None
    filter: Any = None
    rows: pa.Table | None = None
    updated_columns: tuple[str, ...] = ()
    inserts: bool = True
    is_plan: bool = False
    summary: Mapping[str, str] = field(default_factory=dict)
    progress: ProgressOption = None


@dataclass(frozen=True)
class Work:
    """A change in terms of files.

    Attributes
    ----------
    changes : list of FileChange
        The files that are written anew.
    new_rows : int64 array
        The rows of the batch that new files get.
    test : RowTest
        Tells which rows have a key, or match the filter.
    num_inserted, num_updated, num_deleted : int
        Rows of the dataset.
    """

    changes: list[FileChange]
    new_rows: np.ndarray
    test: RowTest
    num_inserted: int = 0
    num_updated: int = 0
    num_deleted: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.changes and not self.new_rows.size


def places_of_keys(
    opened: OpenedDataset, columns: Sequence[str], keys: Any
) -> tuple[list[FileChange], np.ndarray]:
    """Return the rows with one of some keys, and the numbers of the keys that no row has.

    The number of a row's key is that of its replacement.
    """
    located = key_locations(opened, columns[0] if len(columns) == 1 else list(columns), keys)
    table = located.by_key()
    row_table = table.filter(table.column("row").is_valid())
    ids = row_table.column("fragment_id").to_numpy().astype(np.int64)
    rows, key_index = (row_table.column(name).to_numpy() for name in ("row", "key_index"))
    missing = table.filter(table.column("row").is_null()).column("key_index").to_numpy()
    return _by_file(located.present, ids, rows, key_index), np.unique(missing)


def places_of_filter(opened: OpenedDataset, filter: Any) -> list[FileChange]:
    """Return the rows that match a filter."""
    scan = plan_scan(opened, [], (filter,), with_row_address=True)
    addresses = scan.to_table().column("_rowaddr").to_numpy().astype(np.int64)
    numbers = np.full(addresses.size, -1)
    # The scan had its own look at the files. A file that was written since has another id.
    present = opened.look_at_all_files().fragments
    return _by_file(present, addresses >> OFFSET_BITS, addresses & OFFSET_MASK, numbers)


def _by_file(
    files: Iterable[PresentFragment], ids: np.ndarray, rows: np.ndarray, replacements: np.ndarray
) -> list[FileChange]:
    present = {file.fragment_id: file for file in files}
    order = np.lexsort((rows, ids))
    distinct_ids, starts = np.unique(ids[order], return_index=True)
    if not present.keys() >= set(distinct_ids.tolist()):
        raise FragmentChanged("a file changed while its rows were located; call again")
    parts = np.split(order, starts[1:])
    return [
        FileChange(present[fragment_id], rows[part], replacements[part])
        for fragment_id, part in zip(distinct_ids.tolist(), parts, strict=False)
    ]
