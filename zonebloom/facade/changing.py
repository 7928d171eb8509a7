"""Carry out `Dataset.upsert` and `Dataset.erase`: check the arguments, choose the kind of table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.base.notices import warn
from zonebloom.base.progress import ProgressOption, require_progress
from zonebloom.building.builder import Builder
from zonebloom.catalog.model import RETENTION
from zonebloom.catalog.vacuum import vacuum_catalog
from zonebloom.changes.apply import apply_change, reopen_newest
from zonebloom.changes.batch import checked_rows
from zonebloom.changes.folder import FileLister, FolderChanges
from zonebloom.changes.key_test import row_test
from zonebloom.changes.places import Change
from zonebloom.changes.receipt import Receipt, Trace, Traces
from zonebloom.changes.tables import ChangeableTable, retry_after_conflicts
from zonebloom.changes.traces import find_traces
from zonebloom.errors import (
    ChangeRefused,
    InvalidArgument,
    StaleIndexWarning,
    ZoneBloomError,
)
from zonebloom.facade.indices import refresh_indices
from zonebloom.scan.opened import OpenDataset, OpenedDataset
from zonebloom.sources.table_snapshot import SnapshotSource


class ChangedDataset(OpenDataset, Protocol):
    """The state of `zonebloom.Dataset`, for functions that cannot import that class."""

    @property
    def file_lister(self) -> FileLister | None: ...


def erase(
    dataset: ChangedDataset,
    columns: str | Sequence[str] | None,
    keys: Any,
    filter: Any,
    *,
    plan: bool,
    commit_properties: Mapping[str, str] | None,
    progress: ProgressOption,
) -> Receipt:
    """Delete rows; see `Dataset.erase`."""
    options = _checked_options(plan, commit_properties, progress)
    if (columns is None) != (keys is None) or (columns is None) == (filter is None):
        raise InvalidArgument("give either columns and keys, or filter, to say what to erase")
    # The keys are needed several times.
    if isinstance(keys, pa.RecordBatchReader):
        keys = keys.read_all()
    elif isinstance(keys, Iterator):
        keys = list(keys)
    names = () if columns is None else tuple(arguments.require_key_names(columns, "columns"))
    change = Change("erase", names, keys, filter, **options)
    receipt = _apply(dataset, changeable_table(dataset), change)
    if not receipt.is_committed:
        return receipt
    try:
        table = reopen_newest(dataset, changeable_table(dataset))
        test = row_test(dataset.opened, names, keys, filter)
        traces = find_traces(table, receipt, test, is_thorough=False)
    except Exception as error:  # noqa: BLE001 - whatever the log of the table makes a library raise
        # The change is committed, so its receipt must not be lost.
        reason = f"it cannot be searched ({type(error).__name__}); call receipt.check(ds) for more"
        traces = Traces((Trace("log", receipt.location, (), reason),))
    return replace(receipt, traces=traces)


def upsert(
    dataset: ChangedDataset,
    rows: Any,
    on: str | Sequence[str],
    when_matched: str,
    when_not_matched: str,
    columns: Sequence[str] | None,
    *,
    plan: bool,
    commit_properties: Mapping[str, str] | None,
    progress: ProgressOption,
) -> Receipt:
    """Update and insert rows; see `Dataset.upsert`."""
    options = _checked_options(plan, commit_properties, progress)
    names = tuple(arguments.require_key_names(on, "on"))
    table = reopen_newest(dataset, changeable_table(dataset))
    updates = arguments.require_choice(when_matched, "when_matched", ("update", "ignore"))
    inserts = arguments.require_choice(when_not_matched, "when_not_matched", ("insert", "ignore"))
    for name in names:
        dataset.opened.key_column(name)
    with checked_rows(rows, dataset.opened.source.schema, names) as batch:
        updated: Sequence[str] = batch.column_names
        if columns is not None:
            updated = arguments.require_name_list(columns, "columns")
            for name in updated:
                if name not in batch.column_names:
                    raise arguments.invalid_value(columns, "columns", "name columns of the rows")
        keys = batch.select(list(names))
        change = Change(
            "upsert",
            names,
            keys.column(0).combine_chunks() if len(names) == 1 else keys,
            rows=batch,
            updated_columns=tuple(
                name for name in updated if name not in names and updates == "update"
            ),
            inserts=inserts == "insert",
            **options,
        )
        return _apply(dataset, table, change)


def _checked_options(
    plan: bool, commit_properties: Mapping[str, str] | None, progress: ProgressOption
) -> dict[str, Any]:
    """Return the fields of a `Change` that options of users give."""
    arguments.require_bool(plan, "plan")
    require_progress(progress)
    summary = commit_properties or {}
    if not isinstance(summary, Mapping) or not all(
        isinstance(item, str) for pair in summary.items() for item in pair
    ):
        raise arguments.invalid_value(commit_properties, "commit_properties", "give texts")
    return {"is_plan": plan, "summary": summary, "progress": progress}


def _apply(dataset: ChangedDataset, table: ChangeableTable, change: Change) -> Receipt:
    receipt = apply_change(dataset, table, change)
    if receipt.is_committed and dataset.opened.indices:
        try:
            dataset.opened, _ = refresh_indices(
                dataset.opened,
                None,
                retention=RETENTION,
                repair=False,
                spark=None,
                progress=change.progress,
            )
        except (ZoneBloomError, OSError) as error:
            # The change is committed, so its receipt must not be lost.
            warn(
                StaleIndexWarning(
                    f"the {change.operation} of {table.location} is committed, but the index could "
                    f"not be refreshed ({error}); call optimize.optimize_indices() later"
                )
            )
    return receipt


def check_receipt(
    receipt: Receipt, dataset: ChangedDataset, keys: Any, filter: Any, *, purge: bool
) -> Traces:
    """Look again what holds the keys of a receipt; see `Receipt.check`."""
    arguments.require_instance(receipt, Receipt, "receipt")
    table = changeable_table(dataset)
    if table.location != receipt.location:
        raise InvalidArgument(
            f"the receipt is of {receipt.location}, and the dataset of {table.location}; open the "
            "table of the receipt"
        )
    reopen_newest(dataset, table)
    test = None
    if keys is not None or filter is not None:
        what, unfit = ("keys", filter) if receipt.columns else ("a filter", keys)
        if unfit is not None:
            raise InvalidArgument(f"the receipt is of {what}; give {what}, and nothing else")
        test = row_test(dataset.opened, receipt.columns, keys, filter)
        if not receipt.keys.is_of(test.lines()):
            raise InvalidArgument(
                f"these are not the {receipt.keys.count:,} keys of the receipt; give the same keys"
                if receipt.columns
                else "this is not the filter of the receipt; give the same filter"
            )
    traces = find_traces(table, receipt, test, is_thorough=True)
    if not purge or not traces.found:
        return traces
    retry_after_conflicts(table.location, lambda number: table.purge())
    if any(trace.kind == "index" for trace in traces.found):
        _rebuild_indices(dataset.opened)
    reopen_newest(dataset, table)
    return find_traces(table, receipt, test, is_thorough=True)


def _rebuild_indices(opened: OpenedDataset) -> None:
    builder = Builder(opened)
    entries = [opened.index_entry(name) for name in builder.own_index_names()]
    damages = {entry.name: "its filters may hold erased keys" for entry in entries}
    indices = [(entry, opened.indexed_columns(entry)) for entry in entries]
    builder.refresh(indices, None, None, damages)
    vacuum_catalog(opened.catalog, timedelta(0))


def changeable_table(dataset: ChangedDataset) -> ChangeableTable:
    """Return what changes the files of a dataset.

    Raise `ChangeRefused` if nothing does: for a table in memory, a ``pyarrow.dataset.Dataset``, or
    an unpickled dataset of a table.
    """
    opened, lister = dataset.opened, dataset.file_lister
    if isinstance(opened.source, SnapshotSource):
        if lister is None:
            raise ChangeRefused(
                "the dataset lost its table object when it was pickled; open the table again"
            )
        if opened.source.kind == "delta":
            from zonebloom.changes.delta import DeltaChanges

            return DeltaChanges(lister.source)
        from zonebloom.changes.iceberg import IcebergChanges

        return IcebergChanges(lister.source)
    if opened.source.is_in_memory:
        raise ChangeRefused("a table in memory cannot be changed; write it to Parquet first")
    return FolderChanges(opened, lister)
