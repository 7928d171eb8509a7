"""Page headers: what a page says of itself, and whether that is what its location says.

    | PageHeader, Thrift | its compressed bytes |

A page is believed only when header and bytes fill its location and the rows agree: an index
that leads to a wrong page, or a page that claims more than it can hold, is noticed before
anything is allocated for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from zonebloom.errors import FragmentUnreadable
from zonebloom.storage.parquet.thrift import Reader

DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = range(4)
_DICTIONARY_ENCODINGS = frozenset((2, 8))
# Field of PageHeader that describes a page of each type.
_DESCRIBED_BY = {DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_V2: 8}

# ``data[at : at + n]`` gives bytes: bytes themselves or a view of them.
Bytes = bytes | memoryview


class PageHeader(NamedTuple):
    """A page header.

    Attributes
    ----------
    kind : int
        `DATA_PAGE`, `DICTIONARY_PAGE`, `DATA_PAGE_V2`, or what else the format may bring.
    size : int
        Bytes of the page, header included.
    num_values : int
        Nulls and repetitions included; 0 for pages of other kinds.
    num_rows : int or None
        As headers of version 2 say it.
    needs_dictionary : bool
    """

    kind: int
    size: int
    num_values: int
    num_rows: int | None
    needs_dictionary: bool

    @property
    def is_data(self) -> bool:
        return self.kind in (DATA_PAGE, DATA_PAGE_V2)


def page_header(page: Bytes) -> PageHeader:
    """Read the header a page begins with."""
    header = Reader(page).struct()
    kind, size = _size(header, 1), _size(header, 3)
    total = header.stop + size
    _size(header, 2)
    if kind not in _DESCRIBED_BY:
        return PageHeader(kind, total, 0, None, False)
    described = header.get(_DESCRIBED_BY[kind])
    if not isinstance(described, dict):
        raise FragmentUnreadable("a page header does not describe its page")
    num_values = _size(described, 1)
    if kind != DATA_PAGE_V2:
        needs_dictionary = kind == DATA_PAGE and _size(described, 2) in _DICTIONARY_ENCODINGS
        return PageHeader(kind, total, num_values, None, needs_dictionary)
    num_rows = _size(described, 3)
    levels = _size(described, 5) + _size(described, 6)
    if levels > size or num_rows > num_values or _size(described, 2) > num_values:
        raise FragmentUnreadable("a page header contradicts itself")
    needs_dictionary = _size(described, 4) in _DICTIONARY_ENCODINGS
    return PageHeader(kind, total, num_values, num_rows, needs_dictionary)


def _size(fields: dict[int, Any], number: int) -> int:
    value = fields.get(number)
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise FragmentUnreadable(f"a page header has {value!r:.40} where a size is to be")
    return value


def data_page(page: Bytes, num_rows: int, repeated: bool) -> PageHeader:
    """The header of a data page, held against its location."""
    header = page_header(page)
    rows = header.num_rows if repeated else header.num_values
    if not header.is_data or header.size != len(page):
        raise FragmentUnreadable("a page location does not lead to a data page")
    if (rows is not None and rows != num_rows) or num_rows > header.num_values:
        raise FragmentUnreadable(
            f"a page has {header.num_values} values, its location says {num_rows} rows"
        )
    return header


def check_dictionary(page: Bytes) -> None:
    """Refuse bytes that are not one dictionary page."""
    header = page_header(page)
    if header.kind != DICTIONARY_PAGE or header.size != len(page):
        raise FragmentUnreadable("a dictionary page is not where it is said to be")
