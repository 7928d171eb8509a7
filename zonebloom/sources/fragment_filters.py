"""Use the Bloom filters embedded in Parquet files, for fragments that no index covers.

Parquet has no checksum for these filters, and a lookup cannot detect a lost bit. So they are used
only if the dataset was opened with ``embedded_filters=True``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from zonebloom.base.memory_cache import MEMORY_CACHE, CacheOwner
from zonebloom.errors import FragmentUnreadable
from zonebloom.predicates.ast import Predicate, probed_columns
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.files import FileIdentity, ReadCounter, is_at_rest
from zonebloom.storage.random_access import FragmentFile

if TYPE_CHECKING:
    from zonebloom.parquet.embedded_filters import EmbeddedColumn, EmbeddedFilters


class FragmentFilters:
    """The embedded filters of a dataset's fragments. The filters of each file are read once."""

    def __init__(self, source: Source):
        self._source = source
        self._cache_owner = CacheOwner()
        self._partition_columns = source.partition_columns()
        # Leave partition columns out, because the files may hold other values than the paths give.
        self._schema = pa.schema(
            [field for field in source.schema if field.name not in self._partition_columns]
        )

    def __repr__(self) -> str:
        return f"<FragmentFilters of {self._source.root}>"

    def row_group_finder(
        self, predicate: Predicate, counter: ReadCounter
    ) -> Callable[[Fragment, FileIdentity], list[int] | None]:
        """Return a function for the row groups of a fragment that may match a predicate.

        The function returns None if this is unknown. Once a file gives no answer, no other file
        is opened, because the files of a dataset are usually written alike.
        """
        if not self._source.is_parquet or all(
            column[0] in self._partition_columns for column in probed_columns(predicate)
        ):
            return lambda fragment, identity: None
        is_pointless = False

        def row_groups(fragment: Fragment, identity: FileIdentity) -> list[int] | None:
            nonlocal is_pointless
            filters = None if is_pointless else self._filters_of(fragment, identity, counter)
            candidates = filters.candidate_row_groups(predicate, self._schema) if filters else None
            is_pointless = candidates is None
            return candidates

        return row_groups

    def columns(self, fragment: Fragment, identity: FileIdentity) -> list[EmbeddedColumn]:
        is_parquet = self._source.is_parquet
        filters = self._filters_of(fragment, identity, ReadCounter()) if is_parquet else None
        return filters.columns() if filters else []

    def _filters_of(
        self, fragment: Fragment, identity: FileIdentity, counter: ReadCounter
    ) -> EmbeddedFilters | None:
        from zonebloom.parquet.embedded_filters import EmbeddedFilters

        # The filters must not keep this object, which owns them.
        filesystem = self._source.filesystem

        def read(ranges):
            # Open the file for each read, because one open file per fragment could be too many.
            with FragmentFile(filesystem, fragment.path, identity, counter) as file:
                return file.read(ranges)

        cache_key = self._cache_owner.token, fragment.path, identity
        filters = MEMORY_CACHE.get(cache_key, EmbeddedFilters)
        if filters is not None:
            return filters
        opened_at = time.time_ns()
        try:
            filters = EmbeddedFilters(identity.size, read)
        except (pa.ArrowException, OSError, FragmentUnreadable):
            # The scan meets the same error and reports it.
            return None
        # Another write so soon after the last one may leave the identity as it is.
        if is_at_rest(identity, opened_at):
            MEMORY_CACHE.put(cache_key, filters)
        return filters
