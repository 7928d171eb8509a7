"""Choose the kind of table of a dataset, and check what still holds the keys of a receipt."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

from zonebloom.base import arguments
from zonebloom.base.text import count_text
from zonebloom.building.builder import Builder
from zonebloom.catalog.vacuum import vacuum_catalog
from zonebloom.changes.apply import reopen_newest
from zonebloom.changes.folder import FileLister, FolderChanges
from zonebloom.changes.key_test import row_test
from zonebloom.changes.receipt import Receipt, Traces
from zonebloom.changes.tables import ChangeableTable, retry_after_conflicts
from zonebloom.changes.traces import find_traces
from zonebloom.errors import ChangeRefused, InvalidArgument
from zonebloom.scan.opened import OpenDataset, OpenedDataset
from zonebloom.sources.table_snapshot import SnapshotSource


class ChangedDataset(OpenDataset, Protocol):
    """The state of `zonebloom.Dataset`, for functions that cannot import that class."""

    @property
    def file_lister(self) -> FileLister | None: ...


def check_receipt(
    receipt: Receipt, dataset: ChangedDataset, keys: Any, filter: Any, *, purge: bool
) -> Traces:
    """Look again what holds the keys of a receipt; see `Receipt.check`."""
    arguments.require_bool(purge, "purge")
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
                f"these are not the {count_text(receipt.keys.count, 'key')} of the receipt; give "
                "the same keys"
                if receipt.columns
                else "this is not the filter of the receipt; give the same filter"
            )
    traces = find_traces(table, receipt, test, dataset.opened)
    if not purge or not traces.found:
        return traces
    retry_after_conflicts(table.location, lambda number: table.purge())
    if any(trace.kind == "index" for trace in traces.found):
        _rebuild_indices(dataset.opened)
    reopen_newest(dataset, table)
    return find_traces(table, receipt, test, dataset.opened)


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
