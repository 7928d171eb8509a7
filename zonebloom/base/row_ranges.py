"""Sets of rows as half-open ranges, and the result of a search in an index.

A row has an address, as in Lance: ``fragment_id << 32 | row offset in the fragment``. So a
``RowRanges`` can hold rows of one fragment (as offsets) or of a whole dataset (as addresses), with
the same operations.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.base.display import (
    Displayed,
    Strip,
    bounds_up_to,
    pictures_html,
    styled_html,
    title_html,
)
from zonebloom.errors import InvalidArgument

OFFSET_BITS = 32
# One less than addresses have room for, so that the rows of two fragments never touch. `RowRanges`
# would merge ranges that touch.
MAX_ROWS_PER_FRAGMENT = (1 << OFFSET_BITS) - 1

_MAX_OFFSET = 2**63 - 1
_EMPTY = np.empty(0, dtype=np.int64)


class RowRanges:
    """An immutable set of rows, stored as sorted half-open ranges that do not overlap or touch.

    Parameters
    ----------
    ranges : iterable of (start, stop)
        Ranges in any order. They may overlap or be empty.

    Examples
    --------
    >>> zb.RowRanges([(0, 10), (5, 20), (30, 31)]) & zb.RowRanges([(15, 40)])
    RowRanges([(15, 20), (30, 31)])
    >>> len(zb.RowRanges([(0, 10), (30, 31)]))
    11
    """

    __slots__ = ("_rows", "starts", "stops")

    starts: np.ndarray
    stops: np.ndarray
    # The rows that `ranges_of_rows` got.
    _rows: np.ndarray | None

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()):
        try:
            pairs = [(start, stop) for start, stop in ranges]
        except (TypeError, ValueError):
            raise arguments.invalid_value(
                ranges, "ranges", "give pairs: [(start, stop), ...]"
            ) from None
        merged = RowRanges.from_arrays([start for start, _ in pairs], [stop for _, stop in pairs])
        self.starts, self.stops, self._rows = merged.starts, merged.stops, None

    def __getattr__(self, name: str) -> np.ndarray:
        """Compute the ranges of rows when they are first needed, because most scans need rows."""
        if name not in ("starts", "stops") or self._rows is None:
            raise AttributeError(name)
        ranges = self._join_touching(self._rows, self._rows + 1)
        self.starts, self.stops = ranges.starts, ranges.stops
        return getattr(ranges, name)

    @classmethod
    def from_arrays(
        cls, starts: np.ndarray | Sequence[int], stops: np.ndarray | Sequence[int]
    ) -> RowRanges:
        """Make a set from ranges in any order. They may overlap or be empty.

        Parameters
        ----------
        starts, stops : integer array, shape (n,)

        Raises
        ------
        InvalidArgument
            If a start is negative, or a stop is less than its start.

        Examples
        --------
        >>> zb.RowRanges.from_arrays([30, 0], [31, 10])
        RowRanges([(0, 10), (30, 31)])
        """
        starts, stops = _offsets(starts, "starts"), _offsets(stops, "stops")
        if starts.size != stops.size:
            raise InvalidArgument(f"there are {starts.size} starts and {stops.size} stops")
        if starts.size == 0:
            return cls._of(_EMPTY, _EMPTY)
        if np.logical_or.reduce((starts < 0) | (stops < starts)):
            raise InvalidArgument("a row range is (start, stop) with 0 <= start <= stop")
        has_rows = stops > starts
        if not np.logical_and.reduce(has_rows):
            starts, stops = starts[has_rows], stops[has_rows]
        if starts.size > 1 and not (starts[1:] > stops[:-1]).all():
            order = np.argsort(starts, kind="stable")
            return cls._join_touching(starts[order], np.maximum.accumulate(stops[order]))
        return cls._of(starts, stops)

    @classmethod
    def from_rows(cls, rows: np.ndarray) -> RowRanges:
        """Make a set from row numbers.

        Parameters
        ----------
        rows : int64 array, shape (n,)
            Row numbers, ascending and distinct.

        Raises
        ------
        InvalidArgument
            If the rows are not ascending and distinct, or one is negative or 2⁶³ - 1.

        Examples
        --------
        >>> zb.RowRanges.from_rows(np.array([0, 1, 2, 7]))
        RowRanges([(0, 3), (7, 8)])
        """
        rows = _offsets(rows, "rows")
        if rows.size == 0:
            return cls._of(_EMPTY, _EMPTY)
        # Compare rows instead of their differences, which may overflow. The largest int64 cannot be
        # in a range, because no stop lies beyond it.
        is_ascending = np.logical_and.reduce(rows[1:] > rows[:-1])
        if rows[0] < 0 or not is_ascending or rows[-1] == _MAX_OFFSET:
            raise InvalidArgument("rows must be ascending and distinct, from 0 to 2⁶³ - 2")
        if rows[-1] - rows[0] == rows.size - 1:
            return cls._of(rows[:1].copy(), rows[-1:] + 1)
        return cls._join_touching(rows, rows + 1)

    @classmethod
    def _join_touching(cls, starts: np.ndarray, stops: np.ndarray) -> RowRanges:
        """Join ranges that overlap or touch. There is at least one, and both arrays ascend."""
        has_gap = starts[1:] > stops[:-1]
        return cls._of(
            np.concatenate((starts[:1], starts[1:][has_gap])),
            np.concatenate((stops[:-1][has_gap], stops[-1:])),
        )

    @classmethod
    def _of(cls, starts: np.ndarray, stops: np.ndarray) -> RowRanges:
        ranges = object.__new__(cls)
        ranges.starts, ranges.stops, ranges._rows = starts, stops, None
        return ranges

    def __len__(self) -> int:
        """Return the number of rows."""
        if self._rows is not None:
            return self._rows.size
        # Most lookups ask this of one range, several times, and a sum takes ten times as long.
        if self.starts.size == 1:
            return self.stops.item() - self.starts.item()
        return int(np.add.reduce(self.stops - self.starts))

    def __bool__(self) -> bool:
        return self._rows is not None or self.starts.size > 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over the ranges, ascending."""
        return zip(self.starts.tolist(), self.stops.tolist(), strict=True)

    def __contains__(self, row: object) -> bool:
        if not isinstance(row, int | np.integer):
            return False
        # NumPy would compare an unsigned number with the starts as floats, which rounds both.
        row = int(row)
        position = int(np.searchsorted(self.starts, row, side="right")) - 1
        return position >= 0 and bool(row < self.stops[position])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RowRanges)
            and np.array_equal(self.starts, other.starts)
            and np.array_equal(self.stops, other.stops)
        )

    def __hash__(self) -> int:
        return hash((self.starts.tobytes(), self.stops.tobytes()))

    @property
    def num_ranges(self) -> int:
        """The number of ranges."""
        return self.starts.size

    def __and__(self, other: RowRanges) -> RowRanges:
        if not isinstance(other, RowRanges):
            return NotImplemented
        if not self or not other:
            return _EMPTY_RANGES
        if self is other:
            return self
        return self._sweep(other, lambda inside: inside == 3)

    def __or__(self, other: RowRanges) -> RowRanges:
        if not isinstance(other, RowRanges):
            return NotImplemented
        if not self:
            return other
        if not other:
            return self
        return RowRanges.from_arrays(
            np.concatenate([self.starts, other.starts]), np.concatenate([self.stops, other.stops])
        )

    def __sub__(self, other: RowRanges) -> RowRanges:
        if not isinstance(other, RowRanges):
            return NotImplemented
        if not self or not other:
            return self
        return self._sweep(other, lambda inside: inside == 1)

    def issubset(self, other: RowRanges) -> bool:
        """Return whether every row of this set is in the other.

        >>> zb.RowRanges([(2, 4)]).issubset(zb.RowRanges([(0, 10)]))
        True
        """
        return not (self - arguments.require_instance(other, RowRanges, "other"))

    def _sweep(self, other: RowRanges, selects) -> RowRanges:
        """Return the rows that ``selects`` accepts, by a sweep over the bounds of both sets.

        ``selects`` gets an array with 1 for rows in self only, 2 in other only, 3 in both.
        """
        points = np.concatenate([self.starts, self.stops, other.starts, other.stops])
        counts = np.repeat([self.starts.size, other.starts.size], 2)
        steps = np.repeat([1, -1, 2, -2], counts)
        order = np.argsort(points, kind="stable")
        points = points[order]
        is_selected = selects(np.cumsum(steps[order]))[:-1]
        return RowRanges.from_arrays(points[:-1][is_selected], points[1:][is_selected])

    def window(self, start: int, stop: int) -> RowRanges:
        """Return the rows in ``[start, stop)``, counted from ``start``.

        >>> zb.RowRanges([(0, 10), (30, 40)]).window(5, 35)
        RowRanges([(0, 5), (25, 30)])
        """
        start = arguments.require_integer(start, "start")
        stop = arguments.require_integer(stop, "stop")
        low = int(self.stops.searchsorted(start, side="right"))
        high = int(self.starts.searchsorted(stop, side="left"))
        if low >= high or start >= stop:
            return _EMPTY_RANGES
        starts = np.maximum(self.starts[low:high], start) - start
        return RowRanges._of(starts, np.minimum(self.stops[low:high], stop) - start)

    def rows(self) -> np.ndarray:
        """Return all rows of the set, ascending.

        Returns
        -------
        int64 array, shape (len(self),)

        Examples
        --------
        >>> zb.RowRanges([(0, 2), (30, 31)]).rows()
        array([ 0,  1, 30])
        """
        if self._rows is not None:
            return self._rows
        if self.starts.size == 1:
            return np.arange(self.starts[0], self.stops[0])
        counts = self.stops - self.starts
        offsets = np.repeat(self.starts - (np.cumsum(counts) - counts), counts)
        return offsets + np.arange(offsets.size)

    def rows_at(self, numbers: np.ndarray) -> np.ndarray:
        """Return rows by their position in the set. The lowest row has position 0.

        Parameters
        ----------
        numbers : integer array, shape (n,)

        Returns
        -------
        int64 array, shape (n,)

        Raises
        ------
        InvalidArgument
            If a position is negative, or not less than ``len(self)``.

        Examples
        --------
        >>> zb.RowRanges([(0, 2), (30, 40)]).rows_at(np.array([3, 1]))
        array([31,  1])
        """
        numbers = arguments.require_integers(numbers, "numbers", len(self) - 1)
        # Unsigned and signed 64-bit numbers would be added as floats, which rounds them.
        numbers = numbers.astype(np.int64, copy=False)
        counts = self.stops - self.starts
        firsts = np.cumsum(counts) - counts
        ranges = np.searchsorted(firsts, numbers, side="right") - 1
        return self.starts[ranges] + numbers - firsts[ranges]

    def shift(self, rows: int) -> RowRanges:
        """Return the set with ``rows`` added to every row.

        Raises
        ------
        InvalidArgument
            If a row would be below 0 or above 2⁶³ - 2.

        Examples
        --------
        >>> zb.RowRanges([(0, 2), (30, 31)]).shift(10)
        RowRanges([(10, 12), (40, 41)])
        """
        if not self:
            return self
        rows = arguments.require_integer(rows, "rows", minimum=-int(self.starts[0]))
        max_shift = _MAX_OFFSET - int(self.stops[-1])
        if rows > max_shift:
            raise arguments.invalid_value(rows, "rows", f"give at most {max_shift}")
        return RowRanges._of(self.starts + rows, self.stops + rows)

    def __repr__(self) -> str:
        if self.num_ranges <= 8:
            return f"RowRanges({list(self)})"
        first_ranges = ", ".join(map(str, itertools.islice(self, 6)))
        return f"RowRanges([{first_ranges}, ... {self.num_ranges - 6} more])"


def ranges_of_rows(rows: np.ndarray) -> RowRanges:
    """Return the set of rows that a kernel found, ascending and distinct.

    Ranges are computed only if they are needed. The array must not change afterwards.
    """
    if rows.size == 0 or rows[-1] - rows[0] == rows.size - 1:
        return RowRanges._of(rows[:1].copy(), rows[-1:] + 1)
    rows.flags.writeable = False
    ranges = object.__new__(RowRanges)
    ranges._rows = rows
    return ranges


def touching_bounds(rows: RowRanges) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and stops of ranges with the same rows. They may touch."""
    numbers = rows._rows  # noqa: SLF001
    return (rows.starts, rows.stops) if numbers is None else (numbers, numbers + 1)


def _offsets(values: Any, parameter: str) -> np.ndarray:
    """Return row numbers as int64, shape (n,)."""
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == 1:
        return values
    # The callers refuse negative numbers, with a message about ranges.
    return arguments.require_integers(values, parameter, minimum=-_MAX_OFFSET).astype(np.int64)


_EMPTY_RANGES = RowRanges()
_RESULT_SCHEMA = pa.schema(
    [
        ("fragment_id", pa.uint64()),
        ("path", pa.string()),
        ("start", pa.uint64()),
        ("stop", pa.uint64()),
    ]
)

ResultKind = Literal["Exact", "AtMost", "AtLeast"]


class SearchResult(Displayed):
    """An upper and a lower bound of the rows for which a predicate is true.

    A predicate is true, false or null for a row. It is not true for any row outside ``at_most``,
    and not false for any row inside ``at_least``. AND intersects both bounds, and OR unites them.
    NOT swaps them: a row for which ``p`` is not false is a row for which ``NOT p`` is not true.

    Attributes
    ----------
    at_most, at_least, universe : RowRanges
        Row addresses. ``universe`` is every row of the dataset.
    covered : tuple of frozenset of int, or None
        The fragments that each index covers, by id. None if that is not known.
    null_free : bool
        Whether the predicate is known to be null for no row. Only then is it true for every row in
        both bounds.
    kind : {"Exact", "AtMost", "AtLeast"}
        "Exact": both bounds are equal, or no row can match. "AtMost": ``ranges`` is the upper
        bound, and its rows must be rechecked. "AtLeast": there is no upper bound, and ``ranges`` is
        the lower bound.

    Examples
    --------
    >>> print(ds.search("id = 42"))
    SearchResult: AtMost, 100 of 3,000 rows in 1 of 3 fragments
      1.parquet: 300-400
    >>> print(ds.search("id = 42 OR customer = 'nobody'").kind, ds.search("id = -1").kind)
    AtMost Exact
    >>> a, b = ds.search("id = 42"), ds.search("id = 43")
    >>> len((a | b).at_most), len((a & b).at_most)
    (200, 0)
    """

    __slots__ = ("at_least", "at_most", "covered", "null_free", "paths", "universe")

    def __init__(
        self,
        universe: RowRanges,
        *,
        at_most: RowRanges | None = None,
        at_least: RowRanges | None = None,
        paths: Mapping[int, str] | None = None,
        null_free: bool = True,
        covered: tuple[frozenset[int], ...] | None = None,
    ):
        at_most = universe if at_most is None else at_most
        at_least = _EMPTY_RANGES if at_least is None else at_least
        bounds = universe, at_most, at_least
        for name, rows in zip(("universe", "at_most", "at_least"), bounds, strict=True):
            if not isinstance(rows, RowRanges):
                arguments.require_instance(rows, RowRanges, name)
        self.null_free: bool = null_free
        self.covered: tuple[frozenset[int], ...] | None = covered
        self.universe: RowRanges = universe
        self.at_most: RowRanges = at_most
        self.at_least: RowRanges = at_least
        self.paths: Mapping[int, str] = {}
        if paths is not None:
            self.paths = arguments.require_instance(paths, Mapping, "paths")

    def __and__(self, other: SearchResult) -> SearchResult:
        if not isinstance(other, SearchResult):
            return NotImplemented
        return self._with(self.at_most & other.at_most, self.at_least & other.at_least, other)

    def __or__(self, other: SearchResult) -> SearchResult:
        if not isinstance(other, SearchResult):
            return NotImplemented
        return self._with(self.at_most | other.at_most, self.at_least | other.at_least, other)

    def __invert__(self) -> SearchResult:
        return self._with(self.universe - self.at_least, self.universe - self.at_most, self)

    def _with(self, at_most: RowRanges, at_least: RowRanges, other: SearchResult) -> SearchResult:
        return SearchResult(
            self.universe,
            at_most=at_most,
            at_least=at_least,
            paths=self.paths,
            null_free=self.null_free and other.null_free,
            covered=None
            if self.covered is None or other.covered is None
            else self.covered + other.covered,
        )

    @property
    def kind(self) -> ResultKind:
        """The bound that ``ranges`` is: "AtMost" or "AtLeast", or "Exact" if both are equal."""
        if not self.at_most or (self.null_free and self.at_most == self.at_least):
            return "Exact"
        if self.at_least and self.at_most == self.universe:
            return "AtLeast"
        return "AtMost"

    @property
    def ranges(self) -> dict[int, RowRanges]:
        """Row offsets by fragment id, of the bound that ``kind`` names, without empty fragments."""
        return by_fragment(self.at_least if self.kind == "AtLeast" else self.at_most)

    def to_table(self) -> pa.Table:
        """Return the ranges as a table: ``fragment_id``, ``path``, ``start``, ``stop``.

        >>> ds.search("id = 42").to_table().to_pylist()
        [{'fragment_id': 1, 'path': '1.parquet', 'start': 300, 'stop': 400}]
        """
        rows = [
            {
                "fragment_id": fragment_id,
                "path": self.paths.get(fragment_id),
                "start": start,
                "stop": stop,
            }
            for fragment_id, ranges in self.ranges.items()
            for start, stop in ranges
        ]
        return pa.Table.from_pylist(rows, _RESULT_SCHEMA)

    def __str__(self) -> str:
        ranges = self.ranges
        num_rows = sum(map(len, ranges.values()))
        lines = [
            f"SearchResult: {self.kind}, {num_rows:,} of {len(self.universe):,} rows "
            f"in {len(ranges):,} of {len(by_fragment(self.universe)):,} fragments"
        ]
        for fragment_id, offsets in list(ranges.items())[:5]:
            lines.append(f"  {self._name(fragment_id)}: {ranges_text(offsets, 4)}")
        if len(ranges) > 5:
            lines.append(f"  ... {len(ranges) - 5:,} more fragments")
        return "\n".join(lines)

    def _name(self, fragment_id: int) -> str:
        return self.paths.get(fragment_id, f"fragment {fragment_id}")

    def _repr_html_(self) -> str:
        kept_rows = by_fragment(self.at_most)
        strips = []
        for fragment_id, all_rows in by_fragment(self.universe).items():
            rows, name = kept_rows.get(fragment_id, _EMPTY_RANGES), self._name(fragment_id)
            words = f"rows {ranges_text(rows, 3)}" if rows else "skipped"
            strip = Strip(name, words, int(all_rows.stops[-1]), (rows.starts, rows.stops))
            is_covered = self.covered is None or any(fragment_id in ids for ids in self.covered)
            # A file that no index covers can still be skipped, by the partition values of its path.
            if rows and not is_covered:
                strip = Strip(name, f"{words}, not indexed", 1, unindexed=bounds_up_to(1))
            strips.append(strip)
        return styled_html(title_html(str(self).splitlines()[0]), pictures_html(strips))


def ranges_text(rows: RowRanges, max_ranges: int) -> str:
    """Return the first ranges as text, and the number of further ones."""
    first = ", ".join(f"{start:,}-{stop:,}" for start, stop in itertools.islice(rows, max_ranges))
    num_more = rows.num_ranges - max_ranges
    return first + (f", ... {num_more:,} more" if num_more > 0 else "")


def by_fragment(addresses: RowRanges) -> dict[int, RowRanges]:
    """Split row addresses into row offsets by fragment id. No range may cross a fragment."""
    ids = addresses.starts >> OFFSET_BITS
    result: dict[int, RowRanges] = {}
    if ids.size == 0:
        return result
    # Most lookups find one range, for which np.diff would be wasted.
    cuts = np.flatnonzero(np.diff(ids)) + 1 if ids.size > 1 else ids[:0]
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), ids.size], strict=True):
        fragment_id = int(ids[low])
        base = fragment_id << OFFSET_BITS
        result[fragment_id] = RowRanges._of(
            addresses.starts[low:high] - base, addresses.stops[low:high] - base
        )
    return result
