"""Read the page statistics of local Parquet fragments, and keep them in memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from zonebloom.errors import FragmentUnreadable
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.files import FileIdentity, ReadCounter, is_at_rest
from zonebloom.storage.random_access import FragmentFile

if TYPE_CHECKING:
    from zonebloom.parquet.page_statistics import PageBounds

# Reading a smaller file whole takes little longer than reading its statistics.
_MIN_FILE_BYTES = 1 << 24
_MAX_CACHED_COLUMNS = 1024


class FragmentStatistics:
    """The page statistics of a dataset's fragments. Those of each file and column are read once."""

    def __init__(self, source: Source):
        self._source = source
        self._partition_columns = source.partition_columns()
        self._bounds: dict[tuple[str, FileIdentity, str], PageBounds | None] = {}

    def are_used(self, fragment: Fragment, identity: FileIdentity) -> bool:
        """Return whether reading the statistics of a fragment may pay.

        It does not for objects in a store, because it takes further requests.
        """
        source = self._source
        is_plain = source.is_parquet and source.parquet_keys is None and fragment.view is None
        return source.is_local and is_plain and identity.size >= _MIN_FILE_BYTES

    def bounds(
        self, fragment: Fragment, identity: FileIdentity, name: str, counter: ReadCounter
    ) -> PageBounds | None:
        """Return the bounds of the pages of a column, or None if they are not known."""
        # The files may hold other values of a partition column than the paths give.
        if name in self._partition_columns:
            return None
        key = fragment.path, identity, name
        if key in self._bounds:
            return self._bounds[key]
        opened_at = time.time_ns()
        bounds = self._read(fragment, identity, name, counter)
        # Another write so soon after the last one may leave the identity as it is.
        if is_at_rest(identity, opened_at):
            if len(self._bounds) >= _MAX_CACHED_COLUMNS:
                self._bounds.clear()
            self._bounds[key] = bounds
        return bounds

    def _read(
        self, fragment: Fragment, identity: FileIdentity, name: str, counter: ReadCounter
    ) -> PageBounds | None:
        from zonebloom.parquet.page_statistics import STATISTICS_ERRORS, PageStatistics

        try:
            filesystem = self._source.filesystem
            with FragmentFile(filesystem, fragment.path, identity, counter) as file:
                return PageStatistics(identity.size, file.read).bounds(name, file.read)
        except (*STATISTICS_ERRORS, FragmentUnreadable):
            # The scan meets an error of the file again, and reports it.
            return None
