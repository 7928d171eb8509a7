"""What a version of the catalog names: fragments, indices, and the segments those lie in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zonebloom import arguments
from zonebloom.errors import InvalidArgument
from zonebloom.sbbf.sizing import SIZINGS, size_for
from zonebloom.storage.files import FileIdentity

# Files of a segment.
TABLE_FILE = "bloomfilter.arrow"
SLICED_FILE = "bloomfilter.sliced"
KEY_RANGES_FILE = "ranges.arrow"
GLOBAL_FILTER = "global.sbbf"
FILE_NAMES = {"table": TABLE_FILE, "sliced": SLICED_FILE, "pages": TABLE_FILE}

DEFAULT_ITEMS = 8192
DEFAULT_PROBABILITY = 0.00057


@dataclass(frozen=True, slots=True)
class ZoneParameters:
    """Parameters of a BLOOMFILTER index.

    Attributes
    ----------
    number_of_items : int
        Rows a zone, and the distinct values its filter is sized for.
    probability : float
        Target false positive probability.
    sizing : {"log2", "exact"}
        A power of two as Lance takes it, or the least number of blocks.
    fold : bool
        Whether filters of few distinct values are halved as often as the probability allows.
    """

    number_of_items: int = DEFAULT_ITEMS
    probability: float = DEFAULT_PROBABILITY
    sizing: str = SIZINGS[0]
    fold: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.number_of_items, int) and self.number_of_items > 1 << 32:
            raise InvalidArgument(
                f"number_of_items is {arguments.shown(self.number_of_items)}; a fragment has at "
                "most 2**32 rows"
            )
        arguments.flag(self.fold, "fold")
        size_for(self.number_of_items, self.probability, self.sizing)

    @property
    def filter_bytes(self) -> int:
        """Size of one zone's filter, bytes."""
        return size_for(self.number_of_items, self.probability, self.sizing)


@dataclass(frozen=True, slots=True)
class KnownFragment:
    """A fragment as it was when it was indexed.

    Attributes
    ----------
    fragment_id : int
    key : str
    identity : FileIdentity
    num_rows : int
    digest : str
        Of its content; empty of a file that is not local.
    seen_at : int
        When it was that, ns since 1970.
    """

    fragment_id: int
    key: str
    identity: FileIdentity
    num_rows: int
    digest: str = ""
    seen_at: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """One table over a set of fragments, and the map of their pages if they are Parquet.

    Attributes
    ----------
    name : str
    num_bytes : int
        Of the table.
    checksum : str
        XXH3-64 of the table, of a sliced one of its directory.
    num_zones : int
    fragment_ids : tuple of int
    page_map_bytes, page_map_checksum
        0 when there is no map.
    layout : {"table", "sliced", "pages"}
        How the bits of the filters lie; "pages" is a page map alone, of fragments whose
        filters and key ranges are in another segment.
    ranges_bytes, ranges_checksum
        Of the key ranges; 0 when there are none.
    """

    name: str
    num_bytes: int
    checksum: str
    num_zones: int
    fragment_ids: tuple[int, ...]
    page_map_bytes: int = 0
    page_map_checksum: str = ""
    layout: str = "table"
    ranges_bytes: int = 0
    ranges_checksum: str = ""


@dataclass(frozen=True, slots=True)
class GlobalFilterEntry:
    """One filter over all keys of a column.

    Attributes
    ----------
    segment : str
        Folder it lies in.
    num_bytes : int
        Of the file.
    checksum : str
        XXH3-64 of the file.
    fragment_ids : tuple of int
        Whose keys it holds; it may hold others' too.
    num_items : int
        Distinct keys it was sized for.
    probability : float
        Of a false positive at that many.
    """

    segment: str
    num_bytes: int
    checksum: str
    fragment_ids: tuple[int, ...]
    num_items: int
    probability: float


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One index: a column, what its values are hashed as, and its segments."""

    name: str
    column: tuple[str, ...]
    domain: str
    parameters: ZoneParameters
    segments: tuple[Segment, ...]
    created_at: str = ""
    global_filter: GlobalFilterEntry | None = None

    @property
    def folders(self) -> set[str]:
        """Names of the folders it needs."""
        also = {self.global_filter.segment} if self.global_filter is not None else set()
        return {segment.name for segment in self.segments} | also

    @property
    def fragment_ids(self) -> set[int]:
        """Fragments it has filters of, as they were indexed."""
        return {i for segment in self.tables for i in segment.fragment_ids}

    @property
    def num_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(segment.num_bytes for segment in self.segments)

    @property
    def tables(self) -> tuple[Segment, ...]:
        """The segments that have filters."""
        return tuple(segment for segment in self.segments if segment.layout != "pages")

    @property
    def layout(self) -> str:
        """ "table", "sliced", or "mixed" when an index has segments of both."""
        layouts = {segment.layout for segment in self.tables}
        return layouts.pop() if len(layouts) == 1 else "mixed" if layouts else "table"


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the catalog; version 0 is the empty catalog of a folder without one."""

    number: int = 0
    next_fragment_id: int = 0
    fragments: Mapping[str, KnownFragment] = field(default_factory=dict)
    indices: Mapping[str, IndexEntry] = field(default_factory=dict)
