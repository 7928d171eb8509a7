"""Which fragments of a dataset a catalog version knows, as they are on disk now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zonebloom.errors import NoFragments, SourceError
from zonebloom.index.catalog import Version
from zonebloom.ranges import MAX_ROWS_PER_FRAGMENT, OFFSET_BITS, RowRanges
from zonebloom.storage.files import UNKNOWN_MTIME, FileIdentity
from zonebloom.storage.fragments import Fragment


@dataclass(frozen=True, slots=True)
class PresentFragment:
    """A fragment whose file is there.

    Attributes
    ----------
    fragment_id : int
        The catalog's when it knows the file as it is, else one nobody has.
    is_known : bool
    num_rows : int or None
        None for a file the catalog does not know as it is.
    why : str
        Why it is not known.
    """

    fragment: Fragment
    identity: FileIdentity
    fragment_id: int
    is_known: bool
    num_rows: int | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The fragments present now, in scan order, against one catalog version.

    Attributes
    ----------
    present : tuple of PresentFragment
    vanished : tuple of str
        Keys of fragments whose file is gone since the dataset was opened.
    """

    present: tuple[PresentFragment, ...]
    vanished: tuple[str, ...]

    @property
    def live(self) -> frozenset[int]:
        """Ids of the fragments the catalog knows as they are."""
        return frozenset(each.fragment_id for each in self.present if each.is_known)

    def universe(self, count_rows: Callable[[PresentFragment], int]) -> RowRanges:
        """Addresses of every row; rows of unknown fragments are counted by the caller."""
        ranges = []
        for each in self.present:
            rows = count_rows(each) if each.num_rows is None else each.num_rows
            if rows > MAX_ROWS_PER_FRAGMENT:
                raise SourceError(
                    f"{each.fragment.path} has {rows:,} rows; a fragment can have 2**32 - 1 at most"
                )
            base = each.fragment_id << OFFSET_BITS
            ranges.append((base, base + rows))
        return RowRanges(ranges)


def cover(
    fragments: Sequence[Fragment],
    identities: Sequence[FileIdentity | None],
    version: Version,
) -> Coverage:
    """Match the files of a dataset with a catalog version.

    A file that is not to the byte size and mtime what was indexed is another fragment: it
    gets an id of its own.
    """
    present: list[PresentFragment] = []
    vanished: list[str] = []
    next_id = version.next_fragment_id
    for fragment, identity in zip(fragments, identities, strict=True):
        if identity is None:
            vanished.append(fragment.key)
            continue
        known = version.fragments.get(fragment.key)
        if known is not None and known.identity == identity and identity.mtime_ns >= 0:
            present.append(
                PresentFragment(fragment, identity, known.fragment_id, True, known.num_rows)
            )
            continue
        why = "not indexed" if known is None else "changed since it was indexed"
        if identity.mtime_ns == UNKNOWN_MTIME:
            why = "its file system does not say when it was written"
        present.append(PresentFragment(fragment, identity, next_id, False, None, why))
        next_id += 1
    if not present:
        raise NoFragments("every file of the dataset is gone; open it again")
    return Coverage(tuple(present), tuple(vanished))
