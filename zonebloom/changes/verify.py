"""Prove a change: read the new files of the table by brute force, without its index."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from zonebloom.changes.places import Change, Work
from zonebloom.changes.receipt import ChangedFile, Verification
from zonebloom.changes.tables import ChangeableTable
from zonebloom.errors import SourceError
from zonebloom.scan.scanner import plan_scan


def verify_change(
    table: ChangeableTable,
    change: Change,
    work: Work,
    removed: Sequence[ChangedFile],
    new_paths: Sequence[str],
) -> Verification:
    """Read the new files, and compare them with what the change should have done."""
    problems: list[str] = []
    num_rows = num_found = 0
    try:
        present = {file.fragment.path for file in table.snapshot.fragments}
        left = [file.path for file in removed if file.path in present.difference(new_paths)]
        problems += [f"{path} is still one of the table's files" for path in left[:1]]
        gone = [path for path in new_paths if path not in present]
        problems += [f"{path} is not one of the table's files" for path in gone[:1]]
        # All files are read by one scan, because each scan looks at every file of the table.
        opened = table.opened.restricted(present.intersection(new_paths))
        scan = plan_scan(opened, work.test.columns, (None,), use_scalar_index=False)
        for batch in scan.to_batches():
            num_rows += batch.num_rows
            num_found += work.test.count(pa.Table.from_batches([batch]))
    except SourceError as error:
        # The change is committed, whatever other programs do to its files now.
        problems.append(f"the new files cannot be read: {error}")
    num_rows_before = sum(file.num_rows for file in removed)
    expected_rows = num_rows_before - work.num_deleted + work.num_inserted
    expected_found = work.num_updated + work.num_inserted if change.operation == "upsert" else 0
    if num_rows != expected_rows:
        problems.append(f"the new files hold {num_rows:,} rows, and not {expected_rows:,}")
    if num_found != expected_found:
        problems.append(f"{num_found:,} of these rows hold a key, and not {expected_found:,}")
    return Verification(not problems, num_rows, num_found, "; ".join(problems))
