"""Filters inside the Parquet files themselves, for fragments no index covers.

The format has no checksum for them, and a lost bit shows only in a lookup: they are asked only
where the dataset was opened with ``embedded_filters=True``.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.embedded_filters import EmbeddedColumn, EmbeddedFilters
from zonebloom.predicates.ast import Predicate, probed_columns
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.files import FileIdentity, ReadCounter
from zonebloom.storage.random_access import FragmentFile


class FragmentFilters:
    """The embedded filters of a dataset's fragments, each file opened once."""

    def __init__(self, source: Source):
        self._source = source
        self._filters: dict[tuple[str, FileIdentity], EmbeddedFilters | None] = {}
        self._from_paths = source.partition_columns()
        # A column that paths give may hold other values in the files.
        self._schema = pa.schema([f for f in source.schema if f.name not in self._from_paths])

    def row_group_finder(
        self, predicate: Predicate, counter: ReadCounter
    ) -> Callable[[Fragment, FileIdentity], list[int] | None]:
        """What tells which row groups a predicate may be true in, None if unknown; once a file does
        not help, others are not opened, as writers treat a dataset's files alike."""
        if not self._source.is_parquet or all(
            column[0] in self._from_paths for column in probed_columns(predicate)
        ):
            return lambda fragment, identity: None
        is_pointless = False

        def row_groups(fragment: Fragment, identity: FileIdentity) -> list[int] | None:
            nonlocal is_pointless
            filters = None if is_pointless else self._of(fragment, identity, counter)
            kept = filters.candidate_row_groups(predicate, self._schema) if filters else None
            is_pointless = kept is None
            return kept

        return row_groups

    def columns(self, fragment: Fragment, identity: FileIdentity) -> list[EmbeddedColumn]:
        is_parquet = self._source.is_parquet
        filters = self._of(fragment, identity, ReadCounter()) if is_parquet else None
        return filters.columns() if filters else []

    def _of(
        self, fragment: Fragment, identity: FileIdentity, counter: ReadCounter
    ) -> EmbeddedFilters | None:
        def read(ranges):
            # Opened anew: a file kept open for each fragment would be too many.
            filesystem = self._source.filesystem
            with FragmentFile(filesystem, fragment.path, identity, counter) as file:
                return file.read(ranges)

        key = fragment.path, identity
        if key not in self._filters:
            try:
                self._filters[key] = EmbeddedFilters(identity.size, read)
            except (pa.ArrowException, OSError, FragmentUnreadable):
                # The scan meets the same and says so.
                self._filters[key] = None
        return self._filters[key]
