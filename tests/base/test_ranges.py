"""RowRanges compared with set[int], and the bounds of SearchResult for three-valued predicates."""

from __future__ import annotations

import html
import pickle
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.helpers import cases

from zonebloom import RowRanges, SearchResult
from zonebloom.base import row_ranges as ranges
from zonebloom.base.row_ranges import OFFSET_BITS, by_fragment, ranges_of_rows, touching_bounds
from zonebloom.errors import InvalidArgument

BOUND = 60

pairs = st.lists(
    st.tuples(st.integers(0, BOUND), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=8,
)


def rows_of(spans):
    return {row for start, stop in spans for row in range(start, stop)}


def check_equals(ranges, rows):
    """Check that ranges hold these rows, and are sorted, disjoint, non-touching and not empty."""
    pairs_made = list(ranges)
    assert rows_of(pairs_made) == rows
    assert all(start < stop for start, stop in pairs_made)
    assert all(a[1] < b[0] for a, b in pairwise(pairs_made))
    assert len(ranges) == len(rows)
    assert bool(ranges) == bool(rows)
    assert ranges.num_ranges == len(pairs_made)
    assert ranges == RowRanges(pairs_made)
    assert hash(ranges) == hash(RowRanges(pairs_made))


class RangesAgainstASet(RuleBasedStateMachine):
    """A RowRanges and the equal set of rows, through random operations."""

    def __init__(self):
        super().__init__()
        self.ranges, self.rows = RowRanges(), set()

    @rule(spans=pairs)
    def begin_anew(self, spans):
        self.ranges, self.rows = RowRanges(spans), rows_of(spans)

    @rule(spans=pairs)
    def unite(self, spans):
        assert self.ranges | RowRanges(spans) == RowRanges(spans) | self.ranges
        self.ranges, self.rows = self.ranges | RowRanges(spans), self.rows | rows_of(spans)

    @rule(spans=pairs)
    def intersect(self, spans):
        assert self.ranges & RowRanges(spans) == RowRanges(spans) & self.ranges
        self.ranges, self.rows = self.ranges & RowRanges(spans), self.rows & rows_of(spans)

    @rule(spans=pairs)
    def subtract(self, spans):
        self.ranges, self.rows = self.ranges - RowRanges(spans), self.rows - rows_of(spans)

    @rule(spans=pairs)
    def subtract_from(self, spans):
        self.ranges, self.rows = RowRanges(spans) - self.ranges, rows_of(spans) - self.rows

    @rule(start=st.integers(0, BOUND), rows=st.integers(0, BOUND))
    def look_through_a_window(self, start, rows):
        self.ranges = self.ranges.window(start, start + rows)
        self.rows = {row - start for row in self.rows if start <= row < start + rows}

    @rule(by=st.integers(0, 9))
    def move_on(self, by):
        self.ranges, self.rows = self.ranges.shift(by), {row + by for row in self.rows}

    @rule(spans=pairs)
    def compare(self, spans):
        other = RowRanges(spans)
        assert self.ranges.issubset(other) == (self.rows <= rows_of(spans))
        assert other.issubset(self.ranges) == (rows_of(spans) <= self.rows)
        assert (self.ranges == other) == (self.rows == rows_of(spans))

    @rule(row=st.integers(-1, 2 * BOUND))
    def look_for_a_row(self, row):
        assert (row in self.ranges) == (row in self.rows)
        assert (np.int64(row) in self.ranges) == (row in self.rows)

    @invariant()
    def is_the_set(self):
        check_equals(self.ranges, self.rows)


RangesAgainstASet.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestRangesAgainstASet = RangesAgainstASet.TestCase


@given(pairs)
def test_ranges_are_built_from_pairs_in_any_order(spans):
    check_equals(RowRanges(spans), rows_of(spans))
    check_equals(RowRanges(iter(spans)), rows_of(spans))
    starts, stops = (np.array([p[i] for p in spans], dtype=np.int64) for i in (0, 1))
    check_equals(RowRanges.from_arrays(starts, stops), rows_of(spans))


LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    "rows",
    # Some differences of these rows do not fit int64.
    [[-1, 2], [3, 3], [4, 2], [5, -(2**63)], [0, LARGEST - 1, -5], [LARGEST]],
)
def test_rows_out_of_order_are_refused(rows):
    with pytest.raises(InvalidArgument, match="ascending"):
        RowRanges.from_rows(np.array(rows))


def test_ranges_are_made_of_the_largest_rows():
    rows = [0, LARGEST - 2, LARGEST - 1]
    assert RowRanges.from_rows(np.array(rows)).rows().tolist() == rows
    assert list(RowRanges.from_rows(np.array(rows, np.uint64))) == [(0, 1), (LARGEST - 2, LARGEST)]


@pytest.mark.parametrize(
    ("start", "stop"), [(-(2**63), LARGEST), (LARGEST, -(2**63)), (-(2**63), -(2**63))]
)
def test_ranges_of_extreme_numbers_are_refused(start, stop):
    with pytest.raises(InvalidArgument, match="0 <= start <= stop"):
        RowRanges.from_arrays(np.array([0, start]), np.array([LARGEST, stop]))


@pytest.mark.parametrize("by", [LARGEST - 1, LARGEST, 2**63, 2**70, np.uint64(2**64 - 1)])
def test_a_shift_beyond_the_largest_row_is_refused(by):
    with pytest.raises(InvalidArgument, match="rows"):
        RowRanges([(0, 2)]).shift(by)


def test_a_shift_reaches_the_first_and_the_largest_row():
    made = RowRanges([(1, 3)])
    assert list(made.shift(LARGEST - 3)) == [(LARGEST - 2, LARGEST)]
    assert list(made.shift(-1)) == [(0, 2)]
    with pytest.raises(InvalidArgument, match="rows"):
        made.shift(-2)


def test_unsigned_numbers_are_not_rounded():
    # Not every number above 2**53 is a float.
    low = 2**62
    made = RowRanges([(low + 1, low + 9), (low + 20, low + 21)])
    rows = made.rows_at(np.array([8, 0], np.uint64))
    assert rows.dtype == np.int64 and rows.tolist() == [low + 20, low + 1]
    assert np.uint64(low) not in made and np.uint64(low + 1) in made
    assert 2**70 not in made and -(2**70) not in made


@pytest.mark.parametrize("pair", [(-1, 5), (5, 4), (-3, -2)])
def test_invalid_ranges_are_refused(pair):
    with pytest.raises(InvalidArgument, match="0 <= start <= stop"):
        RowRanges([(0, 3), pair])


def test_addresses_may_be_near_the_end_of_int64():
    base = (2**31 - 1) << OFFSET_BITS
    result = RowRanges([(base, base + 2**32 - 1)])
    assert len(result) == 2**32 - 1
    assert result - RowRanges([(base, base + 1)]) == RowRanges([(base + 1, base + 2**32 - 1)])


def test_only_integers_are_rows():
    result = RowRanges([(0, 5)])
    assert 1.0 not in result
    assert "1" not in result
    assert None not in result


def test_ranges_are_not_equal_to_other_objects():
    assert RowRanges([(0, 5)]) != [(0, 5)]
    assert RowRanges() != set()


def test_the_repr_of_ranges_shows_few_ranges_whole_and_the_first_of_many():
    assert repr(RowRanges()) == "RowRanges([])"
    assert repr(RowRanges([(1, 2), (4, 6)])) == "RowRanges([(1, 2), (4, 6)])"
    assert repr(RowRanges((10 * i, 10 * i + 3) for i in range(20))) == (
        "RowRanges([(0, 3), (10, 13), (20, 23), (30, 33), (40, 43), (50, 53), ... 14 more])"
    )


# Addresses


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 5)), max_size=12))
def test_addresses_split_into_the_offsets_of_each_fragment(parts):
    addresses = RowRanges(
        ((f << OFFSET_BITS) + start, (f << OFFSET_BITS) + start + rows) for f, start, rows in parts
    )
    split = by_fragment(addresses)
    assert list(split) == sorted({f for f, _, rows in parts if rows})
    for f, offsets in split.items():
        mine = [(start, start + rows) for g, start, rows in parts if g == f]
        check_equals(offsets, rows_of(mine))


def test_full_fragments_stay_separate():
    max_rows = ranges.MAX_ROWS_PER_FRAGMENT
    whole = RowRanges((f << OFFSET_BITS, (f << OFFSET_BITS) + max_rows) for f in range(3))
    assert by_fragment(whole) == {f: RowRanges([(0, max_rows)]) for f in range(3)}


# SearchResult: soundness under Kleene's logic

# Two fragments of six rows.
ADDRESSES = [(f << OFFSET_BITS) + row for f in (0, 1) for row in range(6)]
UNIVERSE = RowRanges((f << OFFSET_BITS, (f << OFFSET_BITS) + 6) for f in (0, 1))


def ranges_of(mask):
    return RowRanges((a, a + 1) for a, inside in zip(ADDRESSES, mask, strict=True) if inside)


def kleene_and(a, b):
    return False if a is False or b is False else None if a is None or b is None else True


def kleene_not(a):
    return None if a is None else not a


masks = st.lists(st.booleans(), min_size=len(ADDRESSES), max_size=len(ADDRESSES))
truths = st.lists(
    st.sampled_from([True, False, None]), min_size=len(ADDRESSES), max_size=len(ADDRESSES)
)


@st.composite
def leaves(draw):
    """Draw the truth of each row, and a result with loose bounds of it."""
    truth = draw(truths)
    kind = draw(st.sampled_from(["at_most", "both", "nothing"]))
    if kind == "nothing":
        return truth, SearchResult(UNIVERSE)
    extra = draw(masks)
    at_most = ranges_of([t is True or is_extra for t, is_extra in zip(truth, extra, strict=True)])
    if kind == "at_most":
        return truth, SearchResult(UNIVERSE, at_most=at_most)
    fewer = draw(masks)
    at_least = ranges_of(
        [t is not False and is_kept for t, is_kept in zip(truth, fewer, strict=True)]
    )
    return truth, SearchResult(UNIVERSE, at_most=at_most, at_least=at_least)


def combine(children):
    def conjunction(a, b):
        return [kleene_and(x, y) for x, y in zip(a[0], b[0], strict=True)], a[1] & b[1]

    def disjunction(a, b):
        truth = [
            kleene_not(kleene_and(kleene_not(x), kleene_not(y)))
            for x, y in zip(a[0], b[0], strict=True)
        ]
        return truth, a[1] | b[1]

    return (
        st.builds(conjunction, children, children)
        | st.builds(disjunction, children, children)
        | children.map(lambda a: ([kleene_not(x) for x in a[0]], ~a[1]))
    )


@settings(max_examples=cases(300))
@given(st.recursive(leaves(), combine, max_leaves=12))
def test_bounds_hold_for_any_tree_of_and_or_not(tree):
    truth, result = tree
    for address, value in zip(ADDRESSES, truth, strict=True):
        if value is True:
            assert address in result.at_most
        if address in result.at_least:
            assert value is not False
    assert result.at_most.issubset(UNIVERSE)
    assert result.at_least.issubset(UNIVERSE)


def test_or_with_an_unknown_side_is_everything():
    result = SearchResult(UNIVERSE, at_most=RowRanges([(0, 2)]))
    assert (result | SearchResult(UNIVERSE)).at_most == UNIVERSE
    assert (result & SearchResult(UNIVERSE)).at_most == RowRanges([(0, 2)])


def test_the_kind_of_a_result_follows_from_its_bounds():
    first_rows = RowRanges([(0, 2)])
    assert SearchResult(UNIVERSE).kind == "AtMost"
    assert SearchResult(UNIVERSE, at_most=first_rows).kind == "AtMost"
    assert SearchResult(UNIVERSE, at_most=RowRanges()).kind == "Exact"
    assert SearchResult(UNIVERSE, at_most=first_rows, at_least=first_rows).kind == "Exact"
    assert SearchResult(UNIVERSE, at_least=UNIVERSE).kind == "Exact"
    assert SearchResult(UNIVERSE, at_least=first_rows).kind == "AtLeast"
    assert SearchResult(UNIVERSE, at_most=RowRanges([(0, 3)]), at_least=first_rows).kind == "AtMost"


def test_not_flips_at_most_to_at_least():
    result = SearchResult(UNIVERSE, at_most=RowRanges([(0, 2)]))
    flipped = ~result
    assert flipped.kind == "AtLeast"
    assert flipped.at_most == UNIVERSE
    assert flipped.at_least == UNIVERSE - RowRanges([(0, 2)])
    assert flipped.ranges == {0: RowRanges([(2, 6)]), 1: RowRanges([(0, 6)])}
    assert (~flipped).kind == "AtMost"
    assert (~flipped).ranges == {0: RowRanges([(0, 2)])}


def test_ranges_are_the_bound_the_kind_names_without_empty_fragments():
    second = RowRanges([((1 << OFFSET_BITS) + 2, (1 << OFFSET_BITS) + 5)])
    assert SearchResult(UNIVERSE, at_most=second).ranges == {1: RowRanges([(2, 5)])}
    assert SearchResult(UNIVERSE, at_least=second).ranges == {1: RowRanges([(2, 5)])}


def found_in(paths):
    kept_rows = RowRanges([(0, 2), (4, 5), ((1 << OFFSET_BITS) + 2, (1 << OFFSET_BITS) + 5)])
    return SearchResult(UNIVERSE, at_most=kept_rows, paths=paths)


def test_a_result_can_be_converted_to_a_table():
    table = found_in({0: "a.parquet", 1: "b.parquet"}).to_table()
    assert table.schema == pa.schema(
        [
            ("fragment_id", pa.uint64()),
            ("path", pa.string()),
            ("start", pa.uint64()),
            ("stop", pa.uint64()),
        ]
    )
    assert table.to_pydict() == {
        "fragment_id": [0, 0, 1],
        "path": ["a.parquet", "a.parquet", "b.parquet"],
        "start": [0, 4, 2],
        "stop": [2, 5, 5],
    }


def test_combined_results_keep_their_paths():
    result = found_in({0: "a", 1: "b"})
    for other in (~result, result & SearchResult(UNIVERSE), result | SearchResult(UNIVERSE)):
        assert other.paths == {0: "a", 1: "b"}


def test_repr_of_a_result():
    assert str(found_in({0: "a.parquet"})).splitlines() == [
        "SearchResult: AtMost, 6 of 12 rows in 2 of 2 fragments",
        "  a.parquet: 0-2, 4-5",
        "  fragment 1: 2-5",
    ]


def test_repr_of_a_large_result_is_short():
    universe = RowRanges((f << OFFSET_BITS, (f << OFFSET_BITS) + 5000) for f in range(9))
    kept_rows = RowRanges(
        ((f << OFFSET_BITS) + row, (f << OFFSET_BITS) + row + 1)
        for f in range(9)
        for row in range(0, 5000, 500)
    )
    lines = str(SearchResult(universe, at_most=kept_rows)).splitlines()
    assert lines[0] == "SearchResult: AtMost, 90 of 45,000 rows in 9 of 9 fragments"
    assert lines[1].endswith("0-1, 500-501, 1,000-1,001, 1,500-1,501, ... 6 more")
    assert lines[-1] == "  ... 4 more fragments"
    assert len(lines) == 7


def test_html_escapes_paths():
    evil = "<script>alert('x')</script>&.parquet"
    page = found_in({0: evil, 1: "b"})._repr_html_()
    assert "<script>" not in page
    assert html.escape(evil) in page
    assert "<td>rows 0-2, 4-5</td>" in page
    assert page.count("<tr>") == 2


@given(st.sets(st.integers(0, 60)), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9))))
def test_ranges_of_rows_are_those_of_the_same_rows(numbers, bounds):
    rows = np.array(sorted(numbers), dtype=np.int64)
    other = RowRanges([(start, start + length) for start, length in bounds])
    plain = RowRanges.from_rows(rows)
    assert plain == RowRanges([(row, row + 1) for row in numbers])
    for use in (
        lambda ranges: (list(ranges), ranges.rows().tolist(), len(ranges), bool(ranges)),
        lambda ranges: (ranges == plain, plain == ranges, hash(ranges), repr(ranges)),
        lambda ranges: (ranges & other, ranges | other, ranges - other, other - ranges),
        lambda ranges: (ranges.window(3, 40), ranges.shift(2), ranges.issubset(other)),
        lambda ranges: pickle.loads(pickle.dumps(ranges)),
        lambda ranges: ranges.rows_at(np.arange(len(ranges))).tolist(),
    ):
        assert use(ranges_of_rows(rows.copy())) == use(plain)
    starts, stops = touching_bounds(ranges_of_rows(rows.copy()))
    assert RowRanges.from_arrays(starts, stops) == plain
