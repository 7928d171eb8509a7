"""Columns that a file names in another case: Spark reads them, but PyArrow has no such column, so
the index holds nulls for it, and what it says must not be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.catalog.coverage import Coverage, PresentFragment
from zonebloom.dataset import Dataset
from zonebloom.errors import SchemaMismatch
from zonebloom.scan.planner import Planner
from zonebloom.sources.source import Source
from zonebloom.values.columns import column_path, find_leaf_type, matching_names
from zonebloom.values.types import hash_domain


def _other_name(stored: Any, path: Sequence[str]) -> str | None:
    """What a file calls a column it does not have under its name, None when it has it or none."""
    fields = {field.name: field.type for field in stored}
    meant = matching_names(fields, path[0])
    if not meant or meant[0] != path[0]:
        return meant[0] if meant else None
    inner = fields[path[0]]
    is_below = len(path) > 1 and isinstance(inner, pa.StructType)
    return _other_name(inner, path[1:]) if is_below else None


def _stored_schema(opened: Any) -> pa.Schema | None:
    """The schema a fragment has of its own, None when it cannot be read: who reads it says why."""
    try:
        return opened.physical_schema
    except (OSError, pa.ArrowException):
        return None


def require_exact_names(opened: Any, names: Iterable[str]) -> None:
    """Refuse a fragment that holds columns under other names than theirs."""
    stored = _stored_schema(opened)
    for name in names if stored is not None else ():
        other = _other_name(stored, [name])
        if other is not None:
            raise SchemaMismatch(_message(opened.path, name, other))


def _message(path: str, column: str, other: str) -> str:
    return (
        f"{path} calls column {column!r} {other!r}, which Spark reads as one and an index as two; "
        "rename it in the file, or have Spark read: zonebloom.spark.prune, spark.read.parquet"
    )


def require_visible(dataset: Dataset, column: str) -> None:
    """Refuse a column of which an index knows but nulls in a file that has values.

    Files that cannot be read are checked by those who read them.
    """
    path = column_path(dataset.schema, column)
    planner = dataset.opened.planner
    for file, name in files_with_other_case(
        planner, planner.coverage(), dataset.opened.source, path
    ):
        if name is not None:
            raise SchemaMismatch(_message(file.fragment.path, column, name))


def files_with_other_case(
    planner: Planner, coverage: Coverage, source: Source, path: Sequence[str]
) -> Iterator[tuple[PresentFragment, str | None]]:
    """Indexed files that may hold a column under its name in another case, and that name.

    Only files of which nothing but nulls is known are looked into. None where one cannot be read.
    """
    leaf = find_leaf_type(source.schema, path)
    if leaf is None:
        return
    # Of a column of another type by now an index does not answer.
    indices = [
        index
        for index in planner.loaded_indices.values()
        if index.entry.column == tuple(path) and index.entry.domain == hash_domain(leaf)
    ]
    compute: Any = pc
    suspects = set(coverage.known_ids) if indices else set[int]()
    for ranges in (index.key_ranges(leaf) for index in indices):
        # An index built before ranges were kept has none.
        has_values = compute.less(ranges["null_count"], ranges["num_rows"])
        suspects.difference_update(ranges["fragment_id"].filter(has_values).to_pylist())
    for file in coverage.fragments if suspects else ():
        if file.fragment_id not in suspects:
            continue
        pages = planner.pages(file)
        if len(path) == 1 and pages is not None and path[0] in pages.schema.names:
            continue
        stored = _stored_schema(source.open(file.fragment, source.filesystem))
        name = None if stored is None else _other_name(stored, path)
        if stored is None or name is not None:
            yield file, name
