"""Find out which file, and which column of it, an error of PyArrow is about.

PyArrow scans several files at once, and its errors often do not name the one that is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from zonebloom.errors import SchemaMismatch, SourceError, ZoneBloomError
from zonebloom.sources.column_batches import holds_values_of, type_mismatch
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.files import file_errors, unreadable

# The columns that PyArrow's scans add to each batch.
_RESERVED_NAMES = {"__fragment_index", "__batch_index", "__last_in_fragment", "__filename"}


@contextmanager
def naming_files(
    source: Source,
    fragments: Sequence[Fragment],
    columns: Sequence[str],
    *,
    keeps_arrow_errors: bool = False,
) -> Iterator[None]:
    """Raise errors that name the unreadable file in place of PyArrow's errors.

    Parameters
    ----------
    source : Source
    fragments : sequence of Fragment
        The fragments that are read.
    columns : sequence of str
        The columns that are read.
    keeps_arrow_errors : bool
        Whether Arrow's exceptions pass, which may be errors of an expression.

    Raises
    ------
    FragmentUnreadable
    SourceError
        If a file has another type than the dataset, or is missing.
    """
    try:
        yield
    except ZoneBloomError:
        raise
    except (pa.ArrowException, OSError) as error:
        is_arrow_error = isinstance(error, pa.ArrowException)
        if is_arrow_error and keeps_arrow_errors:
            raise
        raise _read_error(source, fragments, columns, error, may_mismatch=is_arrow_error) from None


def path_or_count(fragments: Sequence[Fragment]) -> str:
    """Return the path of the only fragment, or how many there are."""
    return fragments[0].path if len(fragments) == 1 else f"{len(fragments)} fragments"


def _read_error(
    source: Source,
    fragments: Sequence[Fragment],
    columns: Sequence[str],
    error: Exception,
    *,
    may_mismatch: bool,
) -> SourceError:
    """Return an error that names the file among several that PyArrow could not read."""
    schema = source.schema
    reserved_names = sorted(_RESERVED_NAMES.intersection(schema.names))
    if reserved_names:
        return SchemaMismatch(
            f"{path_or_count(fragments)} has a column {reserved_names[0]!r}, and PyArrow reads no "
            "table with a column of that name; rename it, or give a schema without it"
        )
    parquet_in = source.filesystem if source.has_statistics else None
    mismatches: list[tuple[Fragment, str, pa.DataType]] = []
    for fragment in fragments:
        try:
            with file_errors(fragment.path, parquet_in=parquet_in):
                opened = source.open(fragment, source.filesystem)
                stored_schema = opened.physical_schema
        except SourceError as source_error:
            return source_error
        for name in sorted(set(columns).intersection(stored_schema.names)):
            stored_type = stored_schema.field(name).type
            if not holds_values_of(schema.field(name).type, stored_type):
                mismatches.append((fragment, name, stored_type))
    if not (may_mismatch and mismatches):
        return unreadable(path_or_count(fragments), error)
    # Values of a type that does not widen may still fit, so read them to find the misfits.
    cause: Exception = error
    culprit = mismatches[0]
    for mismatch in mismatches if len(mismatches) > 1 else ():
        try:
            _read_column(source, mismatch[0], mismatch[1])
        except (pa.ArrowException, OSError) as misfit:
            culprit, cause = mismatch, misfit
            break
    fragment, name, stored_type = culprit
    return type_mismatch(fragment.path, name, stored_type, schema.field(name).type, cause)


def _read_column(source: Source, fragment: Fragment, name: str) -> None:
    """Read a column as the dataset's type. Raise PyArrow's error if a value does not fit."""
    opened = source.open(fragment, source.filesystem)
    for _ in opened.to_batches(schema=source.schema, columns=[name]):
        pass
