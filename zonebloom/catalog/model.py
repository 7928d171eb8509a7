"""What a version of the catalog names: fragments, indices, and the segments those lie in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from zonebloom.base import arguments
from zonebloom.sbbf.sizing import SIZINGS, size_for
from zonebloom.storage.files import FileIdentity

# Files of a segment.
TABLE_FILES = {"table": "bloomfilter.arrow", "sliced": "bloomfilter.sliced"}
KEY_RANGES_FILE = "ranges.arrow"
GLOBAL_FILTER_FILE = "global.sbbf"
PAGE_MAP_FILE = "pages.arrow"

DEFAULT_NUMBER_OF_ITEMS = 8192
DEFAULT_ZONE_PROBABILITY = 0.00057


@dataclass(frozen=True, slots=True)
class ZoneParameters:
    # Rows a zone, and the distinct values its filter is sized for.
    number_of_items: int = DEFAULT_NUMBER_OF_ITEMS
    probability: float = DEFAULT_ZONE_PROBABILITY
    sizing: str = SIZINGS[0]
    # Whether filters of few values, repeated or of a short zone, are halved as often as the
    # probability allows; Lance's have one size.
    fold: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.number_of_items, int) and self.number_of_items > 1 << 32:
            advice = "a fragment has at most 2**32 rows"
            raise arguments.invalid_value(self.number_of_items, "number_of_items", advice)
        arguments.require_bool(self.fold, "fold")
        size_for(self.number_of_items, self.probability, self.sizing)

    @property
    def filter_bytes(self) -> int:
        return size_for(self.number_of_items, self.probability, self.sizing)


class KnownFragment(NamedTuple):
    fragment_id: int
    key: str
    identity: FileIdentity
    num_rows: int
    # Of its content; empty of a file that is not local.
    digest: str = ""
    # When it was that, ns since 1970.
    seen_at: int = 0
    # Of its size and footer, wherever it is; empty of a file that is no Parquet.
    footer: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """One table over a set of fragments; checksums are XXH3-64, of a sliced one its directory's."""

    name: str
    num_bytes: int
    checksum: str
    num_zones: int
    fragment_ids: tuple[int, ...]
    # How the bits of the filters lie: "table" or "sliced".
    layout: str = "table"
    # 0 where no key ranges were kept.
    ranges_bytes: int = 0
    ranges_checksum: str = ""


@dataclass(frozen=True, slots=True)
class GlobalFilterEntry:
    segment: str
    num_bytes: int
    checksum: str
    fragment_ids: tuple[int, ...]
    # Distinct keys it was sized for, and the probability of a false positive at that many.
    num_items: int
    probability: float


@dataclass(frozen=True, slots=True)
class PageMapEntry:
    segment: str
    num_bytes: int
    checksum: str
    fragment_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    name: str
    column: tuple[str, ...]
    domain: str
    parameters: ZoneParameters
    segments: tuple[Segment, ...]
    created_at: str = ""
    global_filter: GlobalFilterEntry | None = None
    # What stays of the column when it is renamed; empty where that is its name.
    field: tuple[str, ...] = ()

    @property
    def field_or_column(self) -> tuple[str, ...]:
        """The column it was built of, whatever its name is now."""
        return self.field or self.column

    @property
    def file_sizes(self) -> dict[tuple[str, str], int]:
        files = {}
        for segment in self.segments:
            files[segment.name, TABLE_FILES[segment.layout]] = segment.num_bytes
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

    @property
    def layout(self) -> str:
        """ "table", "sliced", or "mixed" when an index has segments of both."""
        layouts = {segment.layout for segment in self.segments}
        return layouts.pop() if len(layouts) == 1 else "mixed" if layouts else "table"


@dataclass(frozen=True, slots=True)
class Listing:
    """A file that lists fragments of a version, by their keys."""

    file: str
    checksum: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the catalog; 0 is a folder without one. Page maps: at most one a fragment."""

    number: int = 0
    next_fragment_id: int = 0
    fragments: Mapping[str, KnownFragment] = field(default_factory=dict)
    indices: Mapping[str, IndexEntry] = field(default_factory=dict)
    page_maps: tuple[PageMapEntry, ...] = ()
    # Where its fragments are listed, or those of the version it was made from; a fragment is what
    # the last says that has it.
    listings: tuple[Listing, ...] = ()
    # Segments that a vacuum deletes: no later version may name them.
    segments_to_delete: tuple[str, ...] = ()
    # The folder that the index is being moved to: no version may follow this one.
    moved_to: str = ""
    # Why nothing is known of it: it is encrypted, and its key is not given.
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
        """The same with other indices, and with newer page maps for the fragments they cover."""
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
