"""Detect files that spell a column name in another case, for engines that ignore the case.

Spark reads such a column, but PyArrow does not find it. The index then holds nulls for it, and
must not be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.catalog.coverage import PresentFragment
from zonebloom.errors import SchemaMismatch
from zonebloom.index.matching import find_misfit
from zonebloom.scan.opened import OpenedDataset
from zonebloom.snapshot import Snapshot
from zonebloom.values.columns import find_leaf_type, matching_names


def _other_name(stored_schema: Any, path: Sequence[str]) -> str | None:
    """Return the name of a column in a file if it differs only in case, or else None."""
    fields = {field.name: field.type for field in stored_schema}
    similar_names = matching_names(fields, path[0])
    if not similar_names or similar_names[0] != path[0]:
        return similar_names[0] if similar_names else None
    struct_type = fields[path[0]]
    is_below = len(path) > 1 and isinstance(struct_type, pa.StructType)
    return _other_name(struct_type, path[1:]) if is_below else None


def _stored_schema(opened: Any) -> pa.Schema | None:
    """Return the schema stored in a file, or None if it cannot be read. Scans raise that error."""
    try:
        return opened.physical_schema
    except (OSError, pa.ArrowException):
        return None


def require_exact_names(opened: Any, names: Iterable[str]) -> None:
    """Raise `SchemaMismatch` if a file spells one of the column names in another case."""
    stored_schema = _stored_schema(opened)
    for name in names if stored_schema is not None else ():
        other = _other_name(stored_schema, [name])
        if other is not None:
            raise SchemaMismatch(_other_case_text(opened.path, name, other))


def _other_case_text(path: str, column: str, other: str) -> str:
    return (
        f"{path} has column {other!r} in place of {column!r}, which Spark reads as one column and "
        "an index as two; rename it in the file, or use zonebloom.spark.prune or spark.read.parquet"
    )


def require_visible(opened: OpenedDataset, path: Sequence[str]) -> None:
    """Raise `SchemaMismatch` if a file has values of a column for which the index has only nulls.

    Unreadable files are ignored here; the scan raises an error for them.
    """
    for file, name in files_with_other_case(opened.look(), path):
        if name is not None:
            raise SchemaMismatch(_other_case_text(file.fragment.path, ".".join(path), name))


def files_with_other_case(
    snapshot: Snapshot, path: Sequence[str]
) -> Iterator[tuple[PresentFragment, str | None]]:
    """Yield indexed files that spell a column name in another case, and that other name.

    The name is None if the file cannot be read. Only files for which the index has nothing but
    nulls are opened.
    """
    source, coverage = snapshot.source, snapshot.coverage
    leaf = find_leaf_type(source.schema, path)
    if leaf is None:
        return
    # An index is not used if the type of its column has changed.
    indices = [
        index
        for index in snapshot.indices.values()
        if tuple(path) in index.columns and find_misfit(index.entry, source) is None
    ]
    compute: Any = pc
    suspect_ids = set(coverage.known_ids) if indices else set[int]()
    for ranges in (index.key_ranges(leaf) for index in indices):
        has_values = compute.less(ranges["null_count"], ranges["zone_length"])
        suspect_ids.difference_update(ranges["fragment_id"].filter(has_values).to_pylist())
    for file in coverage.fragments if suspect_ids else ():
        if file.fragment_id not in suspect_ids:
            continue
        pages = snapshot.pages(file)
        if len(path) == 1 and pages is not None and path[0] in pages.schema.names:
            continue
        stored_schema = _stored_schema(source.open(file.fragment, source.filesystem))
        name = None if stored_schema is None else _other_name(stored_schema, path)
        if stored_schema is None or name is not None:
            yield file, name
