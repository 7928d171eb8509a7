"""Find timestamps that Parquet files store as INT96, which PyArrow reads as nanoseconds."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from zonebloom.sources.source import Source
from zonebloom.values.columns import leaf_names


def int96_leaves(source: Source) -> tuple[str, ...]:
    """Return the columns, and leaves of structs with dots, that the first file stores as INT96."""
    has_candidates = any(_may_hold_nanoseconds(type_) for type_ in source.schema.types)
    if not source.is_parquet or not has_candidates:
        return ()
    first_file: Any = source.open(source.fragments[0], source.filesystem)
    parquet_schema = first_file.metadata.schema
    names = leaf_names(source.schema)
    return tuple(
        leaf.path
        for leaf in map(parquet_schema.column, range(len(parquet_schema)))
        if leaf.physical_type == "INT96" and leaf.max_repetition_level == 0 and leaf.path in names
    )


def _may_hold_nanoseconds(type_: pa.DataType) -> bool:
    return type_ == pa.timestamp("ns") or (
        isinstance(type_, pa.StructType) and any(_may_hold_nanoseconds(f.type) for f in type_)
    )
