"""Carry out `Dataset.upsert` and `Dataset.erase`: check the arguments, choose the kind of table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.base.notices import warn
from zonebloom.base.progress import ProgressOption, require_progress
from zonebloom.catalog.model import RETENTION
from zonebloom.changes.apply import Change, apply_change
from zonebloom.changes.batch import checked_rows
from zonebloom.changes.folder import FileLister, FolderChanges
from zonebloom.changes.receipt import Receipt
from zonebloom.changes.tables import ChangeableTable
from zonebloom.errors import ChangeRefused, InvalidArgument, StaleIndexWarning
from zonebloom.facade.indices import refresh_indices
from zonebloom.scan.opened import OpenDataset
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
    return _apply(dataset, changeable_table(dataset), change)


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
    table = changeable_table(dataset)
    table.reopen_newest(dataset)
    updates = arguments.require_choice(when_matched, "when_matched", ("update", "ignore"))
    inserts = arguments.require_choice(when_not_matched, "when_not_matched", ("insert", "ignore"))
    for name in names:
        dataset.opened.key_column(name)
    if columns is not None:
        columns = arguments.require_name_list(columns, "columns")
    replaced_columns = columns if updates == "update" else ()
    with checked_rows(rows, dataset.opened.source.schema, names, replaced_columns) as batch:
        updated: Sequence[str] = batch.column_names
        if columns is not None:
            updated = columns
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
    def refresh() -> None:
        if not dataset.opened.indices:
            return
        try:
            dataset.opened, _ = refresh_indices(
                dataset.opened,
                None,
                retention=RETENTION,
                repair=False,
                spark=None,
                progress=change.progress,
            )
        except Exception as error:  # noqa: BLE001
            # The change is committed, so no error may lose its receipt.
            warn(
                StaleIndexWarning(
                    f"the {change.operation} of {table.location} is committed, but the index could "
                    f"not be refreshed ({error}); call optimize.optimize_indices() later",
                    commands={"call optimize.optimize_indices()": "run zonebloom refresh PATH"},
                )
            )

    return apply_change(dataset, table, change, refresh)


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
