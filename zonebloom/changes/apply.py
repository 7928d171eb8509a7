"""Carry out an upsert or an erasure: find the rows, write their files anew, commit, verify."""

from __future__ import annotations

import posixpath
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zonebloom.base.progress import ProgressOption, Report, report_progress
from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.base.threads import map_in_order, num_cores, thread_pool
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.changes.batch import are_equal
from zonebloom.changes.key_test import RowTest, row_test
from zonebloom.changes.receipt import ChangedFile, Receipt, Verification, digest_of, utc_text
from zonebloom.changes.tables import (
    ChangeableTable,
    CommitRefused,
    commit_in_doubt,
    retry_after_conflicts,
)
from zonebloom.changes.traces import find_in_files, traces_of_failed_search, with_index_traces
from zonebloom.changes.writing import (
    FileChange,
    WriterOptions,
    WrittenFile,
    changed_rows,
    options_of_file,
    with_all_columns,
)
from zonebloom.errors import ChangeConflict, ChangeRefused, FragmentChanged, InvalidArgument
from zonebloom.reading import key_locations
from zonebloom.scan.opened import OpenDataset, OpenedDataset
from zonebloom.scan.recheck import gather
from zonebloom.scan.scanner import plan_scan
from zonebloom.sources.fragment_rows import read_view_batches
from zonebloom.storage.files import file_errors

_MIN_GROUP_ROWS = 1 << 17
_SMALL_FILE_BYTES = 8 << 20
_NO_ROWS = np.empty(0, dtype=np.int64)
_NO_BATCH = pa.table({})
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


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


def apply_change(
    dataset: OpenDataset,
    table: ChangeableTable,
    change: Change,
    refresh_indices: Callable[[], None],
) -> Receipt:
    """Change a table, and return the receipt. Of a plan, only say what would happen.

    ``refresh_indices`` is called after the commit.

    Raises
    ------
    ChangeRefused
        If the table or the rows do not allow the change. Nothing was written.
    ChangeConflict
        If other writers came first each time. Nothing was committed.
    """
    started_at = time.time()

    def attempt(number: int) -> Receipt:
        table.reopen_newest(dataset)
        _require_same_columns(dataset.opened.source.schema, change.rows, table.location)
        work = _plan_work(dataset.opened, table, change)
        receipt = _planned_receipt(table, change, work, started_at, number)
        if change.is_plan or work.is_empty:
            return receipt
        return _carry_out(dataset, table, change, work, receipt, refresh_indices)

    with nullcontext() if change.is_plan else table.locked():
        return retry_after_conflicts(table.location, attempt)


def _require_same_columns(schema: pa.Schema, rows: pa.Table | None, location: str) -> None:
    """Raise `ChangeConflict` if columns of the rows were changed since the rows were checked."""
    for column in [] if rows is None else rows.schema:
        number = schema.get_field_index(column.name)
        if number < 0 or schema.field(number).type != column.type:
            raise ChangeConflict(
                f"another writer changed the column {column.name!r} of {location} meanwhile; "
                "nothing was changed, so call again with rows for the new schema"
            )


def _planned_receipt(
    table: ChangeableTable,
    change: Change,
    work: Work,
    started_at: float,
    tries: int,
) -> Receipt:
    files = [part.present for part in work.changes]
    snapshot = table.snapshot
    removed = tuple(
        ChangedFile(
            file.fragment.path,
            snapshot.count_rows(file) - len(file.fragment.deleted_rows),
            file.identity.size,
        )
        for file in files
    )
    return Receipt(
        operation=change.operation,
        table=table.kind,
        location=table.location,
        columns=change.columns,
        keys=digest_of(work.test.lines(), secrets.token_hex(16)),
        is_committed=False,
        version_before=table.version,
        version_after=table.version,
        started_at=utc_text(started_at),
        finished_at=utc_text(time.time()),
        tries=tries,
        num_deleted=work.num_deleted,
        num_updated=work.num_updated,
        num_inserted=work.num_inserted,
        files_removed=removed,
    )


def _carry_out(
    dataset: OpenDataset,
    table: ChangeableTable,
    change: Change,
    work: Work,
    receipt: Receipt,
    refresh_indices: Callable[[], None],
) -> Receipt:
    total = sum(file.num_rows for file in receipt.files_removed) + work.new_rows.size
    title = f"{change.operation} in {posixpath.basename(table.location.rstrip('/'))}"
    try:
        with report_progress(change.progress, total, title) as report:
            written = _write_all(table, change, work, report)
    except BaseException:
        table.delete_new_files()
        raise
    paths = _commit(dataset, table, change, work, written)
    # The commit is made, so no error may lose the receipt.
    receipt = replace(
        receipt,
        is_committed=True,
        files_added=tuple(
            ChangedFile(path, file.num_rows, file.num_bytes)
            for path, file in zip(paths, written, strict=True)
        ),
    )
    try:
        table.load_committed()
        table.reopen(dataset)
    except Exception as error:  # noqa: BLE001
        problem = f"the new version cannot be loaded, so it was neither read nor indexed: {error}"
        traces = traces_of_failed_search(table, error) if change.operation == "erase" else None
        return replace(receipt, verification=_not_proven(problem), traces=traces)
    receipt = replace(receipt, version_after=table.version)
    files = dict(zip(paths, written, strict=True))
    with thread_pool(2) as pool:
        verified = pool.submit(_verified, table, change, work, receipt.files_removed, files)
        is_erasure = change.operation == "erase"
        searched = pool.submit(find_in_files, table, receipt, None) if is_erasure else None
        refresh_indices()
    try:
        verification = verified.result()
    except Exception as error:  # noqa: BLE001
        verification = _not_proven(f"the new files cannot be read: {error}")
    traces = None
    if searched is not None:
        try:
            traces = with_index_traces(searched.result(), dataset.opened)
        except Exception as error:  # noqa: BLE001
            traces = traces_of_failed_search(table, error)
    return replace(
        receipt, verification=verification, traces=traces, finished_at=utc_text(time.time())
    )


def _commit(
    dataset: OpenDataset,
    table: ChangeableTable,
    change: Change,
    work: Work,
    written: Sequence[WrittenFile],
) -> list[str]:
    """Replace files in one commit, and return the paths of the new ones."""
    removed = [part.present.fragment for part in work.changes]
    # If the commit fails with another error, nobody knows whether the table names the files.
    try:
        summary = {**change.summary, "zonebloom.operation": change.operation}
        return table.commit(removed, written, summary)
    except (CommitRefused, ChangeRefused) as error:
        refusal = error
    try:
        table.reopen_newest(dataset)
    except Exception as error:  # noqa: BLE001 - whatever makes the table unreadable
        raise commit_in_doubt(table.location, error) from None
    paths = [file.path for file in written]
    # Without new files, nothing tells whether the commit succeeded. Then look again.
    if not paths or not {file.path for file in dataset.opened.source.fragments}.issuperset(paths):
        table.delete_new_files()
        raise refusal
    return paths


def _not_proven(problem: str) -> Verification:
    """Return the verification of files that were not read."""
    return Verification(is_proven=False, num_rows=0, num_rows_with_keys=0, problem=problem)


def _verified(
    table: ChangeableTable,
    change: Change,
    work: Work,
    removed: Sequence[ChangedFile],
    written: Mapping[str, WrittenFile],
) -> Verification:
    """Test all rows of the new files for keys, and compare rows with a key with the batch."""
    source = table.opened.source
    fragments = {fragment.path: fragment for fragment in source.fragments}
    problems: list[str] = []
    remaining_paths = [f.path for f in removed if f.path in fragments and f.path not in written]
    problems += [f"{path} is still one of the table's files" for path in remaining_paths[:1]]
    missing_paths = [path for path in written if path not in fragments]
    problems += [f"{path} is not one of the table's files" for path in missing_paths[:1]]

    batch = _NO_BATCH if change.rows is None else change.rows
    is_inserted = np.zeros(batch.num_rows, dtype=bool)
    is_inserted[work.new_rows] = True

    def read(path: str) -> tuple[int, np.ndarray, bool]:
        """Return the number of rows of a file, the keys they hold, and whether values differ."""
        # Rows that move to another partition are inserted, too.
        is_new = written[path].replaced is None
        columns = batch.column_names if is_new else change.updated_columns
        names = list(dict.fromkeys([*work.test.columns, *columns]))
        num_rows, is_different, keys_found = 0, False, [_NO_ROWS]
        for part in read_view_batches(source, fragments[path], source.filesystem, names):
            rows = pa.table(part)
            numbers = work.test.numbers_of(rows)
            places = np.flatnonzero(numbers >= 0)
            num_rows += rows.num_rows
            keys = numbers[places]
            keys_found.append(keys)
            for name in columns:
                # A row that is updated keeps its values in the other columns.
                is_given = is_inserted[keys] | (name in change.updated_columns)
                values = gather(rows.select([name]), places[is_given])
                batch_values = gather(batch.select([name]), keys[is_given])
                is_different |= not are_equal(values.column(0), batch_values.column(0))
        return num_rows, np.concatenate(keys_found), is_different

    num_threads = _num_threads(table, [file.num_bytes for file in written.values()])
    with thread_pool(num_threads) as pool:
        parts = list(pool.map(read, written.keys() & fragments))
    num_rows = sum(part[0] for part in parts)
    keys_found = np.concatenate([_NO_ROWS, *(part[1] for part in parts)])
    num_rows_before = sum(file.num_rows for file in removed)
    expected_rows = num_rows_before - work.num_deleted + work.num_inserted
    if num_rows != expected_rows:
        problems.append(f"the new files hold {num_rows:,} rows, and not {expected_rows:,}")
    # Each row of the batch replaces some rows, or is a new one.
    expected_keys = np.concatenate([work.new_rows, *(part.replacements for part in work.changes)])
    expected_keys = expected_keys[expected_keys >= 0]
    if not np.array_equal(np.sort(keys_found), np.sort(expected_keys)):
        problems.append(
            f"{keys_found.size:,} of these rows hold a key, and not those {expected_keys.size:,} "
            "that should"
        )
    if any(part[2] for part in parts):
        problems.append("rows with a key do not have the values of the batch")
    return Verification(not problems, num_rows, keys_found.size, "; ".join(problems))


def _plan_work(opened: OpenedDataset, table: ChangeableTable, change: Change) -> Work:
    """Find the rows of a change, and decide which go to new files."""
    test = row_test(opened, change.columns, change.keys, change.filter)
    if change.filter is not None:
        changes, new_rows = _places_of_filter(opened, change.filter), _NO_ROWS
    else:
        changes, new_rows = _places_of_keys(opened, change.columns, change.keys)
    if change.rows is None:
        # A key that is given twice has its rows twice.
        row_sets = [np.unique(part.rows) for part in changes]
        changes = [
            FileChange(part.present, rows, np.full(rows.size, -1))
            for part, rows in zip(changes, row_sets, strict=True)
        ]
        table.require_changeable(changes)
        return Work(changes, _NO_ROWS, test, num_deleted=sum(rows.size for rows in row_sets))
    changes = changes if change.updated_columns else []
    new_rows = new_rows if change.inserts else _NO_ROWS
    table.require_changeable(changes)
    num_inserted, num_updated = new_rows.size, sum(part.rows.size for part in changes)
    changes, moved_rows = _with_moved_rows(table, change, changes)
    new_rows = np.concatenate([new_rows, moved_rows])
    if new_rows.size:
        table.require_new_files(loses_rows=moved_rows.size > 0 and not change.inserts)
        schema = opened.source.schema
        required = [field.name for field in schema if not field.nullable]
        advice = ', which take no nulls; add them, or give when_not_matched="ignore"'
        _require_columns(change.rows.column_names, required, "have new keys", advice)
    return Work(changes, new_rows, test, num_inserted, num_updated)


def _with_moved_rows(
    table: ChangeableTable, change: Change, changes: list[FileChange]
) -> tuple[list[FileChange], np.ndarray]:
    """Return the changes, and the rows that leave their file because their partition differs."""
    columns = table.partition_columns
    if not changes or set(columns).isdisjoint(change.updated_columns):
        return changes, _NO_ROWS
    assert change.rows is not None
    given_columns = [*change.columns, *change.updated_columns]
    _require_columns(given_columns, columns, "change their partition", "; give all columns")
    partition_numbers = np.zeros(change.rows.num_rows, dtype=np.int64)
    numbers_by_partition = {}
    for number, (partition, numbers) in enumerate(table.partitions(change.rows)):
        numbers_by_partition[partition] = number
        partition_numbers[numbers] = number
    changes_in_place: list[FileChange] = []
    moved = [_NO_ROWS]
    for part in changes:
        partition = table.partition_of(part.present.fragment)
        if partition is not None:
            # If several rows have a key, each of them moves.
            own_number = numbers_by_partition.get(partition, -1)
            is_moved = partition_numbers[part.replacements] != own_number
            moved.append(part.replacements[is_moved])
            part = replace(part, replacements=np.where(is_moved, -1, part.replacements))
        changes_in_place.append(part)
    moved_rows = np.concatenate(moved)
    if moved_rows.size:
        names = table.opened.source.schema.names
        _require_columns(given_columns, names, "move to another partition", "; give all columns")
    return changes_in_place, moved_rows


def _require_columns(given: Iterable[str], needed: Iterable[str], reason: str, advice: str) -> None:
    """Raise `InvalidArgument` if rows lack columns that they need for a reason."""
    missing = [name for name in needed if name not in set(given)]
    if missing:
        raise InvalidArgument(f"rows {reason}, but lack the columns {', '.join(missing)}{advice}")


def _write_all(
    table: ChangeableTable, change: Change, work: Work, report: Report | None
) -> list[WrittenFile]:
    """Write the files of a change anew, and new files for rows that belong elsewhere."""
    new_values = None if change.rows is None else change.rows.select(change.updated_columns)

    def rewrite(part: FileChange) -> list[WrittenFile]:
        fragment = part.present.fragment
        old = table.rows_of(fragment, change.updated_columns)
        pages = table.snapshot.pages(part.present)
        options = options_of_file(old.metadata, pages, old.schema, change.updated_columns)
        tables = changed_rows(old.batches, part, new_values)
        partition = table.partition_of(fragment)
        if partition is None:
            schema = table.opened.source.schema
            rows = pa.concat_tables([schema.empty_table(), *(t.cast(schema) for t in tables)])
            return _write_new_files(table, rows, np.arange(rows.num_rows), options, report)
        file = table.write(partition, fragment, tables, old.schema, options, report)
        return [] if file is None else [file]

    num_threads = _num_threads(table, [part.present.identity.size for part in work.changes])
    with thread_pool(num_threads) as pool:
        rewritten = list(map_in_order(pool, rewrite, work.changes, num_threads + 1))
    written = [file for part in rewritten for file in part]
    if work.new_rows.size:
        assert change.rows is not None
        options = _options_of_new_files(table)
        written += _write_new_files(table, change.rows, np.sort(work.new_rows), options, report)
    return written


def _num_threads(table: ChangeableTable, num_bytes: Iterable[int]) -> int:
    """Return how many files are read or written at once, so that they fit into memory."""
    is_little = max(num_bytes, default=0) <= _SMALL_FILE_BYTES
    return table.opened.source.store.num_threads if is_little else num_cores()


def _write_new_files(
    table: ChangeableTable,
    rows: pa.Table,
    numbers: np.ndarray,
    options: WriterOptions,
    report: Report | None,
) -> list[WrittenFile]:
    """Write some rows to new files of the table's target size, one set for each partition."""
    if not numbers.size:
        return []
    schema = table.opened.source.schema
    rows_per_file = max(int(table.target_bytes / max(rows.nbytes / rows.num_rows, 1)), 1)
    # A table without columns has no rows, so keep one more.
    names = {rows.column_names[0], *table.partition_columns}.intersection(rows.column_names)
    keys = with_all_columns(gather(rows.select(sorted(names)), numbers), schema)
    written = []
    for partition, places in table.partitions(keys):
        places = np.sort(places)
        for start in range(0, places.size, rows_per_file):
            part = gather(rows, numbers[places[start : start + rows_per_file]])
            part = with_all_columns(part, schema).select(table.file_schema.names)
            file = table.write(partition, None, [part], table.file_schema, options, report)
            assert file is not None
            written.append(file)
    return written


def _options_of_new_files(table: ChangeableTable) -> WriterOptions:
    """Return the options of the last file of the dataset, which new files get too."""
    fragments = table.snapshot.fragments
    if not fragments:
        return WriterOptions()
    path = fragments[-1].fragment.path
    with file_errors(path), table.opened.source.filesystem.open_input_file(path) as file:
        footer = pq.read_metadata(file)
    options = options_of_file(footer, table.snapshot.pages(fragments[-1]), None, ())
    # A small last file says little about the size of row groups.
    group_rows = max(options.group_rows, _MIN_GROUP_ROWS)
    return WriterOptions(group_rows, options.arguments)


def _places_of_keys(
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


def _places_of_filter(opened: OpenedDataset, filter: Any) -> list[FileChange]:
    """Return the rows that match a filter."""
    scan = plan_scan(opened, [], (filter,), with_row_address=True)
    addresses = scan.to_table().column("_rowaddr").to_numpy().astype(np.int64)
    numbers = np.full(addresses.size, -1)
    # The scan had its own look at the files. A file that was written since has another id.
    present = opened.look_at_all_files().fragments
    return _by_file(present, addresses >> OFFSET_BITS, addresses & _OFFSET_MASK, numbers)


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
