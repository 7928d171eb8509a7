"""Carry out an upsert or an erasure: find the rows, write their files anew, commit, verify."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zonebloom.base.progress import ProgressOption, Report, report_progress
from zonebloom.base.threads import map_in_order, num_cores, thread_pool
from zonebloom.changes.key_test import key_test
from zonebloom.changes.places import (
    Change,
    FileChange,
    Places,
    Work,
    places_of_filter,
    places_of_keys,
)
from zonebloom.changes.receipt import (
    ChangedFile,
    Receipt,
    digest_of,
    utc_text,
)
from zonebloom.changes.tables import ChangeableTable, CommitRefused
from zonebloom.changes.verify import verify_change
from zonebloom.changes.writing import (
    WriterOptions,
    WrittenFile,
    changed_rows,
    options_of_file,
    write_parquet,
)
from zonebloom.errors import ChangeConflict, ChangeRefused, FragmentChanged, InvalidArgument
from zonebloom.scan.opened import OpenDataset, OpenedDataset
from zonebloom.scan.recheck import gather
from zonebloom.snapshot import Snapshot
from zonebloom.sources.source import Fragment
from zonebloom.storage.files import file_errors

_MAX_TRIES = 5
_SECONDS_BEFORE_RETRY = 0.05
_MIN_GROUP_ROWS = 1 << 17


def load_newest(dataset: OpenDataset, table: ChangeableTable) -> None:
    """Load the newest version of a table, and open its files."""
    table.load_newest()
    dataset.refresh()
    table.use(dataset.opened)


def apply_change(
    dataset: OpenDataset,
    table: ChangeableTable,
    change: Change,
    *,
    is_plan: bool,
    summary: dict[str, str],
    progress: ProgressOption,
) -> Receipt:
    """Change a table, and return the receipt. With ``is_plan``, only say what would happen.

    Raises
    ------
    ChangeRefused
        If the table or the rows do not allow the change. Nothing was written.
    ChangeConflict
        If other writers came first each time. Nothing was committed.
    """
    started_at = time.time()
    with nullcontext() if is_plan else table.locked():
        for number in range(1, _MAX_TRIES + 1):
            load_newest(dataset, table)
            _require_same_columns(dataset.opened.source.schema, change.rows, table.location)
            work = plan_work(dataset.opened, table, change)
            if change.filter is None:
                test = key_test(dataset.opened, change.columns, change.keys)
                work = replace(work, test=test)
            snapshot = dataset.opened.look()
            receipt = _planned_receipt(snapshot, table, change, work, started_at, number)
            if is_plan or work.is_empty:
                return receipt
            try:
                files = _Files(snapshot, table)
                return _carry_out(dataset, files, change, work, receipt, summary, progress)
            except CommitRefused:
                time.sleep(_SECONDS_BEFORE_RETRY * number)
    raise ChangeConflict(
        f"other writers changed {table.location} {_MAX_TRIES} times while its files were written; "
        "nothing was changed, so call again when they are done"
    )


def _require_same_columns(schema: pa.Schema, rows: pa.Table | None, location: str) -> None:
    """Raise `ChangeConflict` if columns of the rows were changed since the rows were checked."""
    for field in [] if rows is None else rows.schema:
        number = schema.get_field_index(field.name)
        if number < 0 or schema.field(number).type != field.type:
            raise ChangeConflict(
                f"another writer changed the column {field.name!r} of {location} meanwhile; "
                "nothing was changed, so call again with rows for the new schema"
            )


def _planned_receipt(
    snapshot: Snapshot,
    table: ChangeableTable,
    change: Change,
    work: Work,
    started_at: float,
    tries: int,
) -> Receipt:
    files = [part.present for part in work.changes]
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
        keys=digest_of([str(change.filter)] if work.test is None else work.test.lines()),
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
    files: _Files,
    change: Change,
    work: Work,
    receipt: Receipt,
    summary: dict[str, str],
    progress: ProgressOption,
) -> Receipt:
    table = files.table
    total = sum(file.num_rows for file in receipt.files_removed) + work.new_rows.size
    title = f"{change.operation} in {posixpath.basename(table.location.rstrip('/'))}"
    try:
        with report_progress(progress, total, title) as report:
            written = _write_all(files, change, work, report)
    except FragmentChanged as error:
        files.delete_all()
        raise CommitRefused(str(error)) from None
    except BaseException:
        files.delete_all()
        raise
    # If the commit fails with another error, nobody knows whether the table names the files.
    refusal: Exception | None = None
    paths = [file.path for file in written]
    removed = [part.present.fragment for part in work.changes]
    text = {**summary, "zonebloom.operation": change.operation}
    try:
        paths = table.commit(removed, written, text)
    except (CommitRefused, ChangeRefused) as error:
        refusal = error
    load_newest(dataset, table)
    if refusal is not None:
        named = {file.path for file in dataset.opened.source.fragments}
        # Without new files, nothing tells whether the commit succeeded. Then look again.
        if not paths or not named.issuperset(paths):
            files.delete_all()
            raise refusal
    return replace(
        receipt,
        is_committed=True,
        version_after=table.version,
        verification=verify_change(dataset.opened, change, work, receipt.files_removed, paths),
        finished_at=utc_text(time.time()),
        files_added=tuple(
            ChangedFile(path, file.num_rows, file.num_bytes)
            for path, file in zip(paths, written, strict=True)
        ),
    )


def plan_work(opened: OpenedDataset, table: ChangeableTable, change: Change) -> Work:
    """Find the rows of a change, and decide which go to new files."""
    no_rows = np.empty(0, dtype=np.int64)
    if change.rows is None:
        if change.filter is not None:
            places = places_of_filter(opened, change.filter)
        else:
            places = places_of_keys(opened, change.columns, change.keys)
        # A key that is given twice has its rows twice.
        row_sets = [np.unique(part.rows) for part in places.changes]
        changes = [
            FileChange(part.present, rows, np.full(rows.size, -1))
            for part, rows in zip(places.changes, row_sets, strict=True)
        ]
        table.require_changeable(changes)
        return Work(changes, no_rows, 0, 0, Places(changes).num_changed_rows)
    places = places_of_keys(opened, change.columns, change.keys)
    changes = places.changes if change.updates and change.updated_columns else []
    new_rows = places.new_rows if change.inserts else no_rows
    table.require_changeable(changes)
    num_inserted, num_updated = new_rows.size, sum(part.rows.size for part in changes)
    changes, moved_rows = _with_moved_rows(table, change, changes)
    missing = [name for name in opened.source.schema.names if name not in change.given_columns]
    if moved_rows.size and missing:
        raise InvalidArgument(
            f"rows move to another partition, but lack the columns {', '.join(missing)}; give all "
            "columns"
        )
    new_rows = np.concatenate([new_rows, moved_rows])
    if new_rows.size:
        _require_whole_rows(change.rows, opened.source.schema)
    return Work(changes, new_rows, num_inserted, num_updated, 0)


def _with_moved_rows(
    table: ChangeableTable, change: Change, changes: list[FileChange]
) -> tuple[list[FileChange], np.ndarray]:
    """Return the changes, and the rows that leave their file because their partition differs."""
    columns = set(table.partition_columns)
    no_rows = np.empty(0, dtype=np.int64)
    if not changes or columns.isdisjoint(change.updated_columns):
        return changes, no_rows
    missing = sorted(columns.difference(change.given_columns))
    if missing:
        raise InvalidArgument(
            f"rows change their partition, but lack the columns {', '.join(missing)}; give all "
            "columns"
        )
    assert change.rows is not None
    groups = table.partitions(change.rows)
    partition_numbers = np.zeros(change.rows.num_rows, dtype=np.int64)
    names = {partition: number for number, (partition, _) in enumerate(groups)}
    for number, (_, numbers) in enumerate(groups):
        partition_numbers[numbers] = number
    stays: list[FileChange] = []
    moved: list[np.ndarray] = []
    for part in changes:
        partition = table.partition_of(part.present.fragment)
        if partition is None:
            stays.append(part)
            continue
        own_number = names.get(partition, -1)
        is_moved = partition_numbers[part.batch_rows] != own_number
        moved.append(part.batch_rows[is_moved])
        stays.append(replace(part, batch_rows=np.where(is_moved, -1, part.batch_rows)))
    # If several rows have a key, each of them moves.
    return stays, np.concatenate([no_rows, *moved])


def _require_whole_rows(rows: pa.Table, schema: pa.Schema) -> None:
    """Raise `InvalidArgument` if new rows lack columns that must not be null."""
    missing = [field.name for field in schema if field.name not in rows.column_names]
    required = [name for name in missing if not schema.field(name).nullable]
    if required:
        raise InvalidArgument(
            f"rows have new keys, but lack the columns {', '.join(required)}, which take no nulls; "
            'add them, or give when_not_matched="ignore"'
        )


class _Files:
    """The files that a change writes. `delete_all` deletes them."""

    def __init__(self, snapshot: Snapshot, table: ChangeableTable):
        self.snapshot = snapshot
        self.table = table
        self._filesystem = snapshot.source.filesystem
        self.paths: list[str] = []

    def write(
        self,
        partition: Any,
        replaced: Fragment | None,
        tables: Iterable[pa.Table],
        schema: pa.Schema,
        options: WriterOptions,
        report: Report | None,
    ) -> WrittenFile | None:
        """Write a file. Return None, and write none, if there are no rows."""
        path = self.table.new_path(partition, replaced)
        self.paths.append(path)
        if replaced is None:
            self.snapshot.source.store.create_folder(posixpath.dirname(path))
        result = write_parquet(self._filesystem, path, tables, schema, options, report)
        return result and WrittenFile(path, partition, *result, replaced=replaced)

    def footer(self, path: str) -> pq.FileMetaData:
        with file_errors(path), self._filesystem.open_input_file(path) as file:
            return pq.read_metadata(file)

    def delete_all(self) -> None:
        for path in self.paths:
            with suppress(OSError):
                self._filesystem.delete_file(path)


def _write_all(
    files: _Files, change: Change, work: Work, report: Report | None
) -> list[WrittenFile]:
    """Write the files of a change anew, and new files for rows that belong elsewhere."""
    rows, table = change.replacing_rows, files.table
    schema, snapshot = files.snapshot.source.schema, files.snapshot

    def rewrite(part: FileChange) -> list[WrittenFile]:
        fragment = part.present.fragment
        options = options_of_file(files.footer(fragment.path), snapshot.pages(part.present))
        file_schema, batches = table.rows_of(fragment, change.updated_columns)
        tables = changed_rows(batches, part, rows)
        partition = table.partition_of(fragment)
        if partition is None:
            kept = pa.concat_tables([schema.empty_table(), *(t.cast(schema) for t in tables)])
            return _write_new_files(files, kept, np.arange(kept.num_rows), options, report)
        file = files.write(partition, fragment, tables, file_schema, options, report)
        return [] if file is None else [file]

    with thread_pool(num_cores()) as pool:
        rewritten = list(map_in_order(pool, rewrite, work.changes, num_cores() + 1))
    written = [file for part in rewritten for file in part]
    if work.new_rows.size:
        assert change.rows is not None
        options = _options_of_new_files(files)
        written += _write_new_files(files, change.rows, np.sort(work.new_rows), options, report)
    return written


def _write_new_files(
    files: _Files,
    rows: pa.Table,
    numbers: np.ndarray,
    options: WriterOptions,
    report: Report | None,
) -> list[WrittenFile]:
    """Write some rows to new files of the table's target size, one set for each partition."""
    if not numbers.size:
        return []
    table, schema = files.table, files.snapshot.source.schema
    rows_per_file = max(int(table.target_bytes / max(rows.nbytes / rows.num_rows, 1)), 1)
    # A table without columns has no rows, so keep one more.
    names = {rows.column_names[0], *table.partition_columns}.intersection(rows.column_names)
    keys = _with_all_columns(gather(rows.select(sorted(names)), numbers), schema)
    written = []
    for partition, places in table.partitions(keys):
        places = np.sort(places)
        for start in range(0, places.size, rows_per_file):
            part = gather(rows, numbers[places[start : start + rows_per_file]])
            part = _with_all_columns(part, schema).select(table.file_schema.names)
            file = files.write(partition, None, [part], table.file_schema, options, report)
            assert file is not None
            written.append(file)
    return written


def _options_of_new_files(files: _Files) -> WriterOptions:
    """Return the options of the last file of the dataset, which new files get too."""
    snapshot = files.snapshot
    if not snapshot.fragments:
        return WriterOptions()
    present = snapshot.fragments[-1]
    options = options_of_file(files.footer(present.fragment.path), snapshot.pages(present))
    arguments = {**options.arguments, "sorting_columns": None}
    # A small last file says little about the size of row groups.
    return WriterOptions(max(options.group_rows, _MIN_GROUP_ROWS), arguments)


def _with_all_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with all columns of a schema. Those that they lack are null."""
    columns = [
        rows.column(field.name)
        if field.name in rows.column_names
        else pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        for field in schema
    ]
    return pa.Table.from_arrays(columns, names=schema.names)
