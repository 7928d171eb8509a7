"""Records of the catalog: versions, fragments, indices and their segments.

The field names of `KnownFragment`, `Segment`, `IndexEntry` and of the other entries are the names
in the stored files. Renaming one changes the format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple

import pyarrow as pa

from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT
from zonebloom.errors import SourceError
from zonebloom.storage.files import FileIdentity

# Names of files in a segment folder. Each kind of index names its own file.
KEY_RANGES_FILE = "ranges.arrow"
GLOBAL_FILTER_FILE = "global.sbbf"
PAGE_MAP_FILE = "pages.arrow"

# Rows in a zone.
DEFAULT_NUMBER_OF_ITEMS = 8192
# The kind of an index if none is named.
DEFAULT_KIND = "BLOOMFILTER"
# How long a vacuum keeps replaced versions.
RETENTION = timedelta(days=7)
SEGMENTS = "segments"
VERSIONS = "versions"

# A random prefix for each build, then the numbers of tasks, indices and attempts, or a purpose.
_SEGMENT_NAME = re.compile(r"[0-9a-f]{16}(?:-(?:all|keys|pages|[0-9]+|[0-9a-f]{8}))+")
# Each kind of index names its own file.
_SEGMENT_FILE_NAME = re.compile(r"[a-z]+\.(?:arrow|buckets|sbbf)")
# Documents, listings of fragments, and drafts of both.
_VERSION_FILE_NAME = re.compile(r"[0-9]{20}\.json|[0-9]{20}-[0-9a-f]{16}\.arrow|\.[0-9a-f]{32}")


def require_row_count(path: str, num_rows: int) -> None:
    """Raise `SourceError` if a file has more rows than a fragment can have."""
    if num_rows > MAX_ROWS_PER_FRAGMENT:
        raise SourceError(
            f"{path} has {num_rows:,} rows, but a fragment can have at most "
            f"{MAX_ROWS_PER_FRAGMENT:,}; write its rows to several files"
        )


class KnownFragment(NamedTuple):
    """The catalog entry of a file, as it was when it was indexed."""

    fragment_id: int
    key: str
    identity: FileIdentity
    num_rows: int
    # Digest of the content. Empty unless the file is local.
    digest: str = ""
    # When the file was last known to have this content, in ns since 1970.
    seen_at: int = 0
    # Not used. Earlier versions wrote a digest of the footer of a Parquet file.
    footer: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """The table of an index over a set of fragments, written by one build.

    Checksums are XXH3-64.
    """

    name: str
    # Name of the file of the table.
    file: str
    num_bytes: int
    checksum: str
    num_zones: int
    fragment_ids: tuple[int, ...]
    # 0 if the segment has no key ranges.
    ranges_bytes: int = 0
    ranges_checksum: str = ""


@dataclass(frozen=True, slots=True)
class GlobalFilterEntry:
    """The file of the filter over all keys of an index."""

    segment: str
    num_bytes: int
    checksum: str
    fragment_ids: tuple[int, ...]
    # The number of distinct keys that the filter was sized for, and the probability at that number.
    num_items: int
    probability: float


@dataclass(frozen=True, slots=True)
class PageMapEntry:
    """The file that says where the pages of some fragments lie."""

    segment: str
    num_bytes: int
    checksum: str
    fragment_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """An index: its column, its kind, its parameters and its segments."""

    name: str
    column: tuple[str, ...]
    domain: str
    kind: str
    # The parameters that `IndexKind.check_parameters` returned.
    parameters: dict
    segments: tuple[Segment, ...]
    created_at: str = ""
    global_filter: GlobalFilterEntry | None = None
    # The rule of the keys of each row, as `zonebloom.index.row_keys.rules.rule_json` returns it.
    # Empty if the keys are the values of the column.
    rule: dict = field(default_factory=dict)
    # Stable identifier of the column, which a renaming of the column does not change. Empty if the
    # column is identified by its name.
    field: tuple[str, ...] = ()

    @property
    def number_of_items(self) -> int:
        """The number of rows in a zone."""
        return self.parameters["number_of_items"]

    @property
    def file_sizes(self) -> dict[tuple[str, str], int]:
        files = {}
        for segment in self.segments:
            files[segment.name, segment.file] = segment.num_bytes
            if segment.ranges_bytes:
                files[segment.name, KEY_RANGES_FILE] = segment.ranges_bytes
        if self.global_filter is not None:
            files[self.global_filter.segment, GLOBAL_FILTER_FILE] = self.global_filter.num_bytes
        return files

    @property
    def segment_names(self) -> set[str]:
        return {folder for folder, _ in self.file_sizes}

    @property
    def fragment_ids(self) -> set[int]:
        return {i for segment in self.segments for i in segment.fragment_ids}

    @property
    def num_bytes(self) -> int:
        return sum(segment.num_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Listing:
    """A file that lists some fragments of a version."""

    file: str
    num_bytes: int
    checksum: str
    # Empty in a version that was read without its fragments.
    keys: pa.ChunkedArray = field(repr=False)


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the catalog. Number 0 stands for a folder without a version.

    A fragment is in at most one of the page maps.
    """

    number: int = 0
    next_fragment_id: int = 0
    fragments: Mapping[str, KnownFragment] = field(default_factory=dict)
    indices: Mapping[str, IndexEntry] = field(default_factory=dict)
    page_maps: tuple[PageMapEntry, ...] = ()
    # The files that list the fragments. If several list one fragment, the last of them counts. A
    # version that is not committed yet still has the listings of the version it was made from.
    listings: tuple[Listing, ...] = ()
    # Names of segments that a vacuum is about to delete. Later versions must not use them.
    segments_to_delete: tuple[str, ...] = ()
    # The error text if the version could not be decrypted, otherwise empty.
    locked_reason: str = ""

    @property
    def file_sizes(self) -> dict[tuple[str, str], int]:
        files = {(entry.segment, PAGE_MAP_FILE): entry.num_bytes for entry in self.page_maps}
        for index in self.indices.values():
            files |= index.file_sizes
        return files

    @property
    def segment_names(self) -> set[str]:
        return {folder for folder, _ in self.file_sizes}

    def with_indices(
        self, indices: Mapping[str, IndexEntry], page_maps: Iterable[PageMapEntry] = ()
    ) -> Version:
        """Return a copy with other indices, where new page maps come before those of this version.

        Fragments that no index covers lose their page maps.
        """
        needed = {i for entry in indices.values() for i in entry.fragment_ids}
        used = []
        for page_map in (*page_maps, *self.page_maps):
            ids = page_map.fragment_ids
            if not needed.issuperset(ids):
                ids = tuple(i for i in ids if i in needed)
                page_map = replace(page_map, fragment_ids=ids)
            needed.difference_update(ids)
            if ids:
                used.append(page_map)
        return replace(self, indices=indices, page_maps=tuple(used))


def is_segment_name(name: str) -> bool:
    return _SEGMENT_NAME.fullmatch(name) is not None


def is_segment_file_name(name: str) -> bool:
    return _SEGMENT_FILE_NAME.fullmatch(name) is not None


def is_table_file_name(name: str) -> bool:
    """Return whether the table of an index may have a name for its file."""
    is_other_file = name in (KEY_RANGES_FILE, GLOBAL_FILTER_FILE, PAGE_MAP_FILE)
    return is_segment_file_name(name) and not is_other_file


def is_version_file_name(name: str) -> bool:
    return _VERSION_FILE_NAME.fullmatch(name) is not None
