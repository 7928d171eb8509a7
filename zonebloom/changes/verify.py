"""Prove a change: read the new files of the table by brute force, without its index."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from zonebloom.changes.places import Change, Work
from zonebloom.changes.receipt import ChangedFile, Verification
from zonebloom.errors import SourceError
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.scanner import Scanner, plan_scan


def verify_change(
    opened: OpenedDataset,
    change: Change,
    work: Work,
    removed: Sequence[ChangedFile],
    new_paths: Sequence[str],
) -> Verification:
    """Read the new files, and compare them with what the change should have done."""
    try:
        return _verified(opened, change, work, removed, new_paths)
    except SourceError as error:
        # The change is committed, whatever other programs do to its files now.
        return Verification(
            is_proven=False,
            num_rows=0,
            num_rows_with_keys=0,
            problem=f"the new files cannot be read: {error}",
        )


def _verified(
    opened: OpenedDataset,
    change: Change,
    work: Work,
    removed: Sequence[ChangedFile],
    new_paths: Sequence[str],
) -> Verification:
    problems: list[str] = []
    num_rows = num_found = 0
    present = {file.fragment.path for file in opened.look().fragments}
    gone = [path for path in new_paths if path not in present]
    if gone:
        problems.append(f"{gone[0]} is not one of the table's files")
    left = [file.path for file in removed if file.path in present and file.path not in new_paths]
    if left:
        problems.append(f"{left[0]} is still one of the table's files")
    paths = [path for path in new_paths if path in present]
    # All files are read by one scan, because each scan looks at every file of the table.
    if work.test is None:
        num_rows = _scan(opened, [], paths).count_rows()
        num_found = _scan(opened, [], paths, change.filter).count_rows()
    else:
        for batch in _scan(opened, work.test.columns, paths).to_batches():
            num_rows += batch.num_rows
            num_found += work.test.count(pa.Table.from_batches([batch]))
    num_rows_before = sum(file.num_rows for file in removed)
    expected_rows = num_rows_before - work.num_deleted + work.num_inserted
    expected_found = work.num_updated + work.num_inserted if change.operation == "upsert" else 0
    if num_rows != expected_rows:
        problems.append(f"the new files hold {num_rows:,} rows, and not {expected_rows:,}")
    if num_found != expected_found:
        problems.append(f"{num_found:,} of these rows hold a key, and not {expected_found:,}")
    return Verification(not problems, num_rows, num_found, "; ".join(problems))


def _scan(
    opened: OpenedDataset, columns: list[str], paths: list[str], filter: object = None
) -> Scanner:
    return plan_scan(opened.restricted(paths), columns, (filter,), use_scalar_index=False)
