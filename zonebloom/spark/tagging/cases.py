"""Columns that some files name in another case, which Spark reads and pyarrow does not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from zonebloom.errors import FragmentUnreadable, SchemaMismatch
from zonebloom.spark.names import other_name
from zonebloom.storage.fragments import Fragment, Source


def require_same_case(source: Source, fragment: Fragment, columns: Iterable[str]) -> None:
    """Refuse a file that holds a column under its name in another case alone.

    Pyarrow sees nulls there, and an index holds them: keys would be taken for new.

    Raises
    ------
    SchemaMismatch, FragmentUnreadable
    """
    try:
        stored: Any = source.open(fragment, source.filesystem).physical_schema
    except (OSError, pa.ArrowException) as error:
        raise FragmentUnreadable(
            f"cannot read {fragment.path}: {error}; repair or remove the file"
        ) from error
    for column in columns:
        other = other_name(stored, [column])
        if other is not None:
            raise SchemaMismatch(
                f"{fragment.path} holds key column {column!r} as {other!r}, which Spark reads "
                f"as {column!r} and pyarrow does not; write the file anew with {column!r}, or set "
                "spark.sql.caseSensitive to true if its rows are to have null there"
            )
