"""Whether a column is worth an index: what was estimated of it, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zonebloom.base import arguments
from zonebloom.base.display import Displayed, list_html, styled_html, table_html, title_html
from zonebloom.base.text import bytes_text, table_text
from zonebloom.errors import ColumnNotFound

INDEX = "index"
KEY_RANGES = "key ranges suffice"
FEW_VALUES = "too few distinct values"
MEASURE = "a measure"
FEW_ROWS = "too few rows"
ONLY_NULLS = "nothing but nulls"
FROM_PATHS = "read from paths"
NOT_INDEXABLE = "not indexable"

# Above this share of zones kept a lookup gains little over a scan, be its key drawn from the rows,
# where frequent values weigh most, or from the values, as likely one as another.
_MOST = 0.7
# From here on the former reads much, and what is said is said of rare values.
_SKEWED = 0.5
# Key ranges do as well as an index where they leave so many times the zones, or so many more.
_AS_GOOD = 1.5
_FEW_MORE = 2


@dataclass(frozen=True, slots=True)
class Advice(Displayed):
    """What an index on one column would cost and save, by estimate.

    Attributes
    ----------
    column, type : str
    verdict : str
        "index", "key ranges suffice", "too few distinct values", "a measure" (numbers with
        fractions and durations, which nobody looks up by equality), "too few rows", "nothing
        but nulls", "read from paths", or "not indexable: " and why.
    why : str
        The verdict's reason, a sentence.
    num_rows, num_zones : int
        Of the dataset.
    null_share : float or None
        None here and below for a column that cannot be indexed.
    distinct : int or None
        Distinct values of the dataset.
    distinct_per_zone : float or None
    index_bytes, index_bytes_exact, index_bytes_unfolded : int or None
        Of the filters as they are by default, with ``sizing="exact"``, and with ``fold=False``.
    build_seconds : float or None
        To read, hash and insert it on the cores of this process; writing comes on top.
    zones_with_index : float or None
        Zones a lookup reads of a key that is there, the key of a row drawn at random: the
        zones that hold it, and false positives.
    zones_with_key_ranges : float or None
        The same where only each zone's minimum and maximum are known; None where the type has
        none. Without either it is `num_zones`.
    zones_per_value : float or None
        Zones that hold a value, each distinct value counted once: less than
        `zones_with_index` where a few values are everywhere and most are rare.
    zones_if_absent : float or None
        Zones a lookup reads of a key that is nowhere: false positives.
    """

    column: str
    type: str
    verdict: str
    why: str
    num_rows: int
    num_zones: int
    null_share: float | None = None
    distinct: int | None = None
    distinct_per_zone: float | None = None
    index_bytes: int | None = None
    index_bytes_exact: int | None = None
    index_bytes_unfolded: int | None = None
    build_seconds: float | None = None
    zones_with_index: float | None = None
    zones_with_key_ranges: float | None = None
    zones_per_value: float | None = None
    zones_if_absent: float | None = None

    def __str__(self) -> str:
        return f"{self.column}: {self.why}"

    @property
    def is_worth_it(self) -> bool:
        """Whether the verdict is to index the column."""
        return self.verdict == INDEX


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Advices(Displayed, Sequence[Advice]):
    """The advice on several columns, by position or by column name.

    Attributes
    ----------
    advices : tuple of Advice
    num_rows, num_zones : int
        Of the dataset.
    number_of_items : int
        Rows a zone.
    sampled_zones : int
        Zones looked at; figures are exact where that is all of them.
    read_bytes : int
        Bytes of data files read for it.
    seconds : float

    Examples
    --------
    >>> advices = ds.advise(["id", "day"], number_of_items=100)
    >>> advices.worth_it
    ['id']
    >>> print(advices["day"])
    day: clustered: key ranges alone leave 10 of 30 zones, and Parquet keeps them
    """

    advices: tuple[Advice, ...]
    num_rows: int
    num_zones: int
    number_of_items: int
    sampled_zones: int
    read_bytes: int
    seconds: float

    def __len__(self) -> int:
        return len(self.advices)

    def __getitem__(self, key: int | str | slice) -> Advice | tuple[Advice, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if isinstance(key, str):
            for each in self.advices:
                if each.column == key:
                    return each
            known = arguments.suggest_names(
                key, [each.column for each in self.advices], "there is:"
            )
            raise ColumnNotFound(
                f"there is no advice on column {arguments.short_repr(key)}; {known}"
            )
        return self.advices[key]

    @property
    def worth_it(self) -> list[str]:
        """Names of the columns worth an index, as `create_scalar_index` takes them."""
        return [each.column for each in self.advices if each.is_worth_it]

    def __str__(self) -> str:
        # All of them are wider than a terminal.
        brief = [[row[at] for at in _BRIEF] for row in (_HEADERS, *map(_cells, self.advices))]
        lines = [self._title(), table_text(list(map(str, brief[0])), brief[1:])]
        return "\n".join([*lines, *map(str, self.advices)])

    def __repr__(self) -> str:
        return f"<Advices: index {', '.join(self.worth_it) or 'no column'}; {self._title()}>"

    def _repr_html_(self) -> str:
        table = table_html(_HEADERS, [_cells(each) for each in self.advices])
        return styled_html(title_html(self._title()), table, list_html(map(str, self.advices)))

    def _title(self) -> str:
        rows, zones = f"{self.num_rows:,} rows", f"{self.num_zones:,} zones"
        return (
            f"{rows} in {zones} of {self.number_of_items:,}; looked at {self.sampled_zones:,} "
            f"zones, read {bytes_text(self.read_bytes)} in {self.seconds:.1f} s"
        )


_HEADERS = [
    *("column", "verdict", "type", "nulls", "distinct", "size", "exact", "unfolded", "build"),
    *("zones read", "of a value", "by key ranges"),
]

_BRIEF = [_HEADERS.index(name) for name in ("column", "type", "distinct", "size")]
_BRIEF += [_HEADERS.index(name) for name in ("zones read", "verdict")]


def _cells(each: Advice) -> list[object]:
    if each.distinct is None:
        verdict = each.verdict.partition(":")[0]
        return [each.column, verdict, each.type, *["-"] * (len(_HEADERS) - 3)]
    return [
        each.column,
        each.verdict,
        each.type,
        f"{each.null_share or 0:.0%}",
        f"{_rounded(each.distinct):,}",
        bytes_text(each.index_bytes or 0),
        bytes_text(each.index_bytes_exact or 0),
        bytes_text(each.index_bytes_unfolded or 0),
        f"{each.build_seconds or 0:.1f} s",
        _zones_text(each.zones_with_index),
        _zones_text(each.zones_per_value),
        _zones_text(each.zones_with_key_ranges),
    ]


def _rounded(count: int) -> int:
    """Three figures: an estimate has no more."""
    return count if count < 1000 else round(count, 3 - len(str(count)))


def _zones_text(zones: float | None) -> str:
    if zones is None:
        return "-"
    return f"{zones:,.1f}" if zones < 9.95 else f"{zones:,.0f}"


def with_verdict(
    advice: Advice, no_ranges: str, row_group_zones: float, is_measure: bool = False
) -> Advice:
    """The advice with a verdict on its figures; why the files' own minima and maxima are of no use,
    if so, and how many zones a row group has."""
    verdict, why = _verdict(advice, no_ranges, row_group_zones)
    if verdict == INDEX and is_measure:
        verdict = MEASURE
        why = f"values of {advice.type} are measured, not looked up; were they, {why}"
    return replace(advice, verdict=verdict, why=why)


def _verdict(figures: Advice, no_ranges: str, row_group_zones: float) -> tuple[str, str]:
    zones = figures.num_zones
    if zones < 2:
        are = "is one zone" if zones == 1 else "are no rows"
        return FEW_ROWS, f"there {are}: there is nothing to skip"
    if figures.null_share == 1:
        return ONLY_NULLS, "no row looked at has a value: there is no key to look up"
    read, every = figures.zones_with_index or 0, f"{zones:,} zones"
    per_value, distinct = figures.zones_per_value or 0, figures.distinct or 0
    if read > _SKEWED * zones:
        if (read + per_value) / 2 < _MOST * zones:
            return INDEX, (
                f"for rare values: a value is in {_zones_text(per_value)} of {every} on average, "
                f"that of a row drawn at random in {_zones_text(read)}"
            )
        values = f"{_rounded(distinct):,} distinct value{'s' if distinct != 1 else ''}"
        return FEW_VALUES, f"{values}; that of a row is in {_zones_text(read)} of {every}"
    ranges = figures.zones_with_key_ranges
    finding = f"a lookup reads {_zones_text(read)} of {every}"
    if ranges is None:
        return INDEX, f"{finding}; the type has no key ranges"
    left = f"key ranges alone leave {_zones_text(ranges)}"
    if ranges > max(_AS_GOOD * read, read + _FEW_MORE):
        return INDEX, f"{finding}; {left}"
    if no_ranges:
        return INDEX, f"{finding}; {left}, but {no_ranges}"
    how = "sorted" if ranges < 3 else "clustered"
    kept = f"{how}: {left} of {every}, and Parquet keeps them"
    if row_group_zones < 2 * ranges:
        return KEY_RANGES, kept
    return KEY_RANGES, (
        f"{kept}; readers that skip row groups alone read about {_zones_text(row_group_zones)}, "
        "so keep row groups small"
    )
