"""Sets of rows as half-open ranges, and what a search says about them.

A row has an address, as in Lance: ``fragment_id << 32 | row offset in the fragment``. So
one ``RowRanges`` holds ranges of one fragment (plain offsets) or of a whole dataset
(addresses), and the algebra is the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from zonebloom import arguments
from zonebloom.display import Shown, Strip, page, pictures_html, title_html, up_to
from zonebloom.errors import InvalidArgument

OFFSET_BITS = 32
MAX_ROWS_PER_FRAGMENT = (1 << OFFSET_BITS) - 1

_MOST_OFFSET = 2**63 - 1
_EMPTY = np.empty(0, dtype=np.int64)


class RowRanges:
    """An immutable set of rows, kept as sorted, disjoint, non-touching half-open ranges.

    Parameters
    ----------
    ranges : iterable of (start, stop)
        In any order, overlapping or empty ones too.

    Examples
    --------
    >>> zb.RowRanges([(0, 10), (5, 20), (30, 31)]) & zb.RowRanges([(15, 40)])
    RowRanges([(15, 20), (30, 31)])
    >>> len(zb.RowRanges([(0, 10), (30, 31)]))
    11
    """

    __slots__ = ("starts", "stops")

    starts: np.ndarray
    stops: np.ndarray

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()):
        try:
            pairs = [(start, stop) for start, stop in ranges]
        except (TypeError, ValueError):
            raise arguments.refusal(ranges, "ranges", "give pairs: [(start, stop), ...]") from None
        whole = RowRanges.from_arrays([each[0] for each in pairs], [each[1] for each in pairs])
        self.starts, self.stops = whole.starts, whole.stops

    @classmethod
    def from_arrays(
        cls, starts: np.ndarray | Sequence[int], stops: np.ndarray | Sequence[int]
    ) -> RowRanges:
        """Make a set of ranges in any order, overlapping or empty ones too.

        Parameters
        ----------
        starts, stops : integer array, shape (n,)

        Raises
        ------
        InvalidArgument
            For a negative start or a stop before its start.

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
        if (starts < 0).any() or (stops < starts).any():
            raise InvalidArgument("a row range is (start, stop) with 0 <= start <= stop")
        has_rows = stops > starts
        if not has_rows.all():
            starts, stops = starts[has_rows], stops[has_rows]
        if starts.size > 1 and not (starts[1:] > stops[:-1]).all():
            order = np.argsort(starts, kind="stable")
            starts, stops = starts[order], np.maximum.accumulate(stops[order])
            first = np.empty(starts.size, dtype=bool)
            first[0] = True
            np.greater(starts[1:], stops[:-1], out=first[1:])
            last = np.append(first[1:], True)
            starts, stops = starts[first], stops[last]
        return cls._of(starts, stops)

    @classmethod
    def from_rows(cls, rows: np.ndarray) -> RowRanges:
        """Make a set of rows.

        Parameters
        ----------
        rows : int64 array, shape (n,)
            Ascending, each once.

        Raises
        ------
        InvalidArgument
            For rows in another order, a negative one, or 2⁶³ - 1.

        Examples
        --------
        >>> zb.RowRanges.from_rows(np.array([0, 1, 2, 7]))
        RowRanges([(0, 3), (7, 8)])
        """
        rows = _offsets(rows, "rows")
        if rows.size == 0:
            return cls._of(_EMPTY, _EMPTY)
        steps = np.diff(rows)
        # Behind the last one there is no offset to end a range.
        if rows[0] < 0 or (steps < 1).any() or rows[-1] == _MOST_OFFSET:
            raise InvalidArgument("rows are given in ascending order, each once, from 0 on")
        ends = np.flatnonzero(steps > 1)
        return cls._of(rows[np.append(0, ends + 1)], rows[np.append(ends, rows.size - 1)] + 1)

    @classmethod
    def _of(cls, starts: np.ndarray, stops: np.ndarray) -> RowRanges:
        ranges = cls.__new__(cls)
        ranges.starts, ranges.stops = starts, stops
        return ranges

    def __len__(self) -> int:
        """Number of rows."""
        return int((self.stops - self.starts).sum())

    def __bool__(self) -> bool:
        return self.starts.size > 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges, ascending."""
        return zip(self.starts.tolist(), self.stops.tolist(), strict=True)

    def __contains__(self, row: object) -> bool:
        if not isinstance(row, int | np.integer):
            return False
        at = int(np.searchsorted(self.starts, row, side="right")) - 1
        return at >= 0 and bool(row < self.stops[at])

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
        """Number of ranges."""
        return self.starts.size

    def __and__(self, other: RowRanges) -> RowRanges:
        if not isinstance(other, RowRanges):
            return NotImplemented
        if not self or not other:
            return _NOTHING
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
        """Whether every row of this set is in the other.

        >>> zb.RowRanges([(2, 4)]).issubset(zb.RowRanges([(0, 10)]))
        True
        """
        return not (self - arguments.of_type(other, RowRanges, "other"))

    def _sweep(self, other: RowRanges, wanted) -> RowRanges:
        """Walk both sets' bounds; ``inside`` is 1 within self, 2 within other, 3 in both."""
        points = np.concatenate([self.starts, self.stops, other.starts, other.stops])
        counts = np.repeat([self.starts.size, other.starts.size], 2)
        steps = np.repeat([1, -1, 2, -2], counts)
        order = np.argsort(points, kind="stable")
        points = points[order]
        inside = wanted(np.cumsum(steps[order]))[:-1]
        return RowRanges.from_arrays(points[:-1][inside], points[1:][inside])

    def window(self, start: int, stop: int) -> RowRanges:
        """The rows in ``[start, stop)``, counted from ``start``.

        >>> zb.RowRanges([(0, 10), (30, 40)]).window(5, 35)
        RowRanges([(0, 5), (25, 30)])
        """
        start, stop = arguments.whole(start, "start"), arguments.whole(stop, "stop")
        low = int(np.searchsorted(self.stops, start, side="right"))
        high = int(np.searchsorted(self.starts, stop, side="left"))
        if low >= high or start >= stop:
            return _NOTHING
        starts = np.maximum(self.starts[low:high], start) - start
        return RowRanges._of(starts, np.minimum(self.stops[low:high], stop) - start)

    def rows(self) -> np.ndarray:
        """All rows of the set, ascending.

        Returns
        -------
        int64 array, shape (len(self),)

        Examples
        --------
        >>> zb.RowRanges([(0, 2), (30, 31)]).rows()
        array([ 0,  1, 30])
        """
        counts = self.stops - self.starts
        offsets = np.repeat(self.starts - (np.cumsum(counts) - counts), counts)
        return offsets + np.arange(offsets.size)

    def rows_at(self, numbers: np.ndarray) -> np.ndarray:
        """Rows of the set by their number, counted from 0 in ascending order.

        Parameters
        ----------
        numbers : integers, shape (n,)

        Returns
        -------
        int64 array, shape (n,)

        Raises
        ------
        InvalidArgument
            For a number that is not below ``len(self)``.

        Examples
        --------
        >>> zb.RowRanges([(0, 2), (30, 40)]).rows_at(np.array([3, 1]))
        array([31,  1])
        """
        numbers = arguments.whole_numbers(numbers, "numbers", len(self) - 1)
        counts = self.stops - self.starts
        firsts = np.cumsum(counts) - counts
        within = np.searchsorted(firsts, numbers, side="right") - 1
        return self.starts[within] + numbers - firsts[within]

    def shift(self, rows: int) -> RowRanges:
        """The same ranges, ``rows`` further on.

        Raises
        ------
        InvalidArgument
            When a row would be below 0 or over 2⁶³ - 1.

        Examples
        --------
        >>> zb.RowRanges([(0, 2), (30, 31)]).shift(10)
        RowRanges([(10, 12), (40, 41)])
        """
        if not self:
            return self
        rows = arguments.whole(
            rows, "rows", -int(self.starts[0]), _MOST_OFFSET - int(self.stops[-1])
        )
        return RowRanges._of(self.starts + rows, self.stops + rows)

    def __repr__(self) -> str:
        if self.num_ranges <= 8:
            return f"RowRanges({list(self)})"
        shown = ", ".join(map(str, itertools.islice(self, 6)))
        return f"RowRanges([{shown}, ... {self.num_ranges - 6} more])"


def _offsets(values: Any, parameter: str) -> np.ndarray:
    """Row numbers as int64, shape (n,)."""
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == 1:
        return values
    # Those below 0 are refused as ranges.
    return arguments.whole_numbers(values, parameter, least=-_MOST_OFFSET).astype(np.int64)


_NOTHING = RowRanges()
_RESULT_SCHEMA = pa.schema(
    [
        ("fragment_id", pa.uint64()),
        ("path", pa.string()),
        ("start", pa.uint64()),
        ("stop", pa.uint64()),
    ]
)

Kind = Literal["Exact", "AtMost", "AtLeast"]


class SearchResult(Shown):
    """What an index says of a predicate: two bounds of the rows it is true for.

    Predicates have three values (true, false, null). Rows outside ``at_most`` are not true;
    rows inside ``at_least`` are not false. AND intersects both bounds and OR unites them.
    NOT swaps them: what is not false for ``p`` is not true for ``NOT p``.

    Attributes
    ----------
    at_most, at_least, universe : RowRanges
        Row addresses; ``universe`` is every row of the dataset.
    covered : tuple of frozenset of int, or None
        Fragment ids of each index that answered; None where that is not known.
    null_free : bool
        Whether no row is null for the predicate, as far as the bounds say: only then are rows in
        both bounds true.
    kind : {"Exact", "AtMost", "AtLeast"}
        "Exact": the bounds meet, or nothing can match. "AtMost": ``ranges`` is the upper
        bound, the rows in it are to be rechecked. "AtLeast": nothing bounds the result from
        above, and ``ranges`` is the lower bound.

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
        bounds = {"universe": universe, "at_most": at_most, "at_least": at_least}
        for name, rows in bounds.items():
            if rows is not None or name == "universe":
                arguments.of_type(rows, RowRanges, name)
        self.null_free: bool = null_free
        self.covered: tuple[frozenset[int], ...] | None = covered
        self.universe: RowRanges = universe
        self.at_most: RowRanges = universe if at_most is None else at_most
        self.at_least: RowRanges = _NOTHING if at_least is None else at_least
        paths = {} if paths is None else paths
        self.paths: Mapping[int, str] = arguments.of_type(paths, Mapping, "paths")

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
    def kind(self) -> Kind:
        """Which bound ``ranges`` is."""
        if not self.at_most or (self.null_free and self.at_most == self.at_least):
            return "Exact"
        if self.at_least and self.at_most == self.universe:
            return "AtLeast"
        return "AtMost"

    @property
    def ranges(self) -> dict[int, RowRanges]:
        """The bound ``kind`` names: fragment id to row offsets, fragments with none left out."""
        return by_fragment(self.at_least if self.kind == "AtLeast" else self.at_most)

    def to_table(self) -> pa.Table:
        """The ranges as a table: ``fragment_id``, ``path``, ``start``, ``stop``.

        >>> ds.search("id = 42").to_table().to_pylist()
        [{'fragment_id': 1, 'path': '1.parquet', 'start': 300, 'stop': 400}]
        """
        rows = [
            {"fragment_id": fragment_id, "path": self.paths.get(fragment_id), "start": a, "stop": b}
            for fragment_id, ranges in self.ranges.items()
            for a, b in ranges
        ]
        return pa.Table.from_pylist(rows, _RESULT_SCHEMA)

    def __str__(self) -> str:
        ranges = self.ranges
        rows = sum(len(each) for each in ranges.values())
        lines = [
            f"SearchResult: {self.kind}, {rows:,} of {len(self.universe):,} rows "
            f"in {len(ranges):,} of {len(by_fragment(self.universe)):,} fragments"
        ]
        for fragment_id, of_fragment in list(ranges.items())[:5]:
            lines.append(f"  {self._name(fragment_id)}: {ranges_text(of_fragment, 4)}")
        if len(ranges) > 5:
            lines.append(f"  ... {len(ranges) - 5:,} more fragments")
        return "\n".join(lines)

    def _name(self, fragment_id: int) -> str:
        return self.paths.get(fragment_id, f"fragment {fragment_id}")

    def _repr_html_(self) -> str:
        kept = by_fragment(self.at_most)
        files = []
        for fragment_id, every in by_fragment(self.universe).items():
            rows, name = kept.get(fragment_id, _NOTHING), self._name(fragment_id)
            words = f"rows {ranges_text(rows, 3)}" if rows else "skipped"
            strip = Strip(name, words, int(every.stops[-1]), (rows.starts, rows.stops))
            covered = self.covered is None or any(fragment_id in ids for ids in self.covered)
            # Of a file that no index covers, paths alone can tell that it holds nothing.
            if rows and not covered:
                strip = Strip(name, f"{words}, not indexed", 1, unindexed=up_to(1))
            files.append(strip)
        return page(title_html(str(self).splitlines()[0]), pictures_html(files))


def ranges_text(rows: RowRanges, most: int) -> str:
    """The first few ranges, and how many more there are."""
    first = ", ".join(f"{start:,}-{stop:,}" for start, stop in itertools.islice(rows, most))
    more = rows.num_ranges - most
    return first + (f", ... {more:,} more" if more > 0 else "")


def by_fragment(addresses: RowRanges) -> dict[int, RowRanges]:
    """Split row addresses, in ranges that cross no fragment, into offsets by fragment id."""
    ids = addresses.starts >> OFFSET_BITS
    result: dict[int, RowRanges] = {}
    if ids.size == 0:
        return result
    # Most lookups lead to one range.
    cuts = np.flatnonzero(np.diff(ids)) + 1 if ids.size > 1 else ids[:0]
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), ids.size], strict=True):
        fragment_id = int(ids[low])
        base = fragment_id << OFFSET_BITS
        result[fragment_id] = RowRanges._of(
            addresses.starts[low:high] - base, addresses.stops[low:high] - base
        )
    return result
