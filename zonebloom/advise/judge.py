"""The advice on a column: figures from a sample, and the verdict whether an index is worth it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zonebloom.base import arguments
from zonebloom.base.display import (
    Displayed,
    lines_html,
    list_html,
    styled_html,
    table_html,
    title_html,
)
from zonebloom.base.text import bytes_text, table_text
from zonebloom.catalog.model import DEFAULT_KIND
from zonebloom.errors import ColumnNotFound

INDEX = "index"
INDEXED = "indexed already"
FEW_VALUES = "too few distinct values"
RARELY_LOOKED_UP = "rarely looked up"
FEW_ROWS = "too few rows"
ONLY_NULLS = "nothing but nulls"
FROM_PATHS = "read from paths"
NOT_INDEXABLE = "not indexable"

# The first lookup of a process reads all of a BLOOMFILTER, which is 4 MB for so many rows, and some
# kilobytes of a HASH.
_MIN_HASH_ROWS = 1_000_000
# A lookup that reads a larger share of the zones gains little over a scan. The share is the mean
# for two keys: that of a random row, which is often a frequent value, and a random distinct value.
_MAX_USEFUL_SHARE = 0.7
# If the key of a random row is in a larger share of the zones, only rare values may need an index.
_MAX_ROW_KEY_SHARE = 0.5
# Bounds of zones are as good as an index of keys if they leave at most this factor of its zones, or
# at most this many more.
_MAX_BOUNDS_FACTOR = 1.5
_MAX_MORE_ZONES = 2


@dataclass(frozen=True, slots=True)
class Advice(Displayed):
    """The judgement of one column: whether an index is worth it, of which kind, and why.

    The figures are estimates from the sampled zones. They are None for a column that cannot be
    indexed.

    Attributes
    ----------
    column, type : str
    verdict : str
        "index", "indexed already", "too few distinct values", "rarely looked up" (numbers with
        fractions, durations and times, in no order), "too few rows", "nothing but nulls", "read
        from paths", or "not indexable: " with the reason.
    why : str
        The reason of the verdict.
    null_share : float or None
        The share of rows that are null.
    distinct : int or None
        The number of distinct values, or words, in the dataset.
    distinct_per_zone : float or None
        The mean number of them in a zone.
    zones_read : float or None
        The zones that hold the value of a random row. A lookup with an index reads these, and a few
        false positives.
    zones_per_value : float or None
        The mean of these zones over all distinct values. It is less than `zones_read` if a few
        values are frequent and most are rare.
    zones_in_bounds : float or None
        The zones between whose least and greatest value the value of a random row lies. None for
        words, elements of lists and entries of maps.
    index_type : str or None
        The kind of index to build: "BLOOMFILTER", "HASH" or "ZONEMAP". None if there is none to
        build.
    options : dict
        Further arguments of `Dataset.create_scalar_index`, such as ``tokens``.
    """

    column: str
    type: str
    verdict: str = ""
    why: str = ""
    null_share: float | None = None
    distinct: int | None = None
    distinct_per_zone: float | None = None
    zones_read: float | None = None
    zones_per_value: float | None = None
    zones_in_bounds: float | None = None
    index_type: str | None = None
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.column}: {self.why}"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Advices(Displayed, Sequence[Advice]):
    """The advice on several columns, by position or by column name.

    Attributes
    ----------
    advices : tuple of Advice
    num_rows, num_zones : int
        Rows and zones of the dataset.
    number_of_items : int
        Rows of a zone.
    sampled_zones : int
        Zones in the sample. The figures are exact if these are all zones.
    read_bytes : int
        Bytes of data files that were read.
    seconds : float
        The duration of the call.
    page_sizes : str
        A line about the pages of the columns that are worth an index or have one, if smaller pages
        would make lookups much cheaper, else "".

    Examples
    --------
    >>> advices = ds.advise(["id", "day"], number_of_items=100)
    >>> print(*advices.calls)
    ds.create_scalar_index('day', 'ZONEMAP', number_of_items=100)
    >>> print(advices["day"])
    day: clustered: least and greatest values leave 10 of 30 zones
    """

    advices: tuple[Advice, ...]
    num_rows: int
    num_zones: int
    number_of_items: int
    sampled_zones: int
    read_bytes: int
    seconds: float
    page_sizes: str = ""

    def __len__(self) -> int:
        return len(self.advices)

    def __getitem__(self, key: int | str | slice) -> Any:
        if isinstance(key, str):
            for advice in self.advices:
                if advice.column == key:
                    return advice
            columns = [advice.column for advice in self.advices]
            suggestion = arguments.suggest_names(key, columns, "there is:")
            raise ColumnNotFound(
                f"there is no advice on column {arguments.short_repr(key)}; {suggestion}"
            )
        return self.advices[key]

    @property
    def builds(self) -> list[tuple[list[str], str, dict[str, Any]]]:
        """The columns, the kind and the options of each build. Columns with equal ones share it."""
        columns: dict[tuple[str, tuple[tuple[str, Any], ...]], list[str]] = {}
        for advice in self.advices:
            if advice.index_type is not None:
                key = advice.index_type, tuple(advice.options.items())
                columns.setdefault(key, []).append(advice.column)
        return [(names, kind, dict(options)) for (kind, options), names in columns.items()]

    @property
    def calls(self) -> list[str]:
        """The calls of these builds, as Python code for a dataset ``ds``."""
        calls: list[str] = []
        for columns, index_type, options in self.builds:
            names = columns[0] if len(columns) == 1 else columns
            words = [repr(names), repr(index_type), *(f"{k}={v!r}" for k, v in options.items())]
            calls.append(f"ds.create_scalar_index({', '.join(words)})")
        return calls

    @property
    def reasons(self) -> list[str]:
        """Lines with the reasons of the verdicts, and about the sizes of pages."""
        return [*map(str, self.advices), *filter(None, [self.page_sizes])]

    @property
    def title(self) -> str:
        """The size of the dataset and of the sample, in one line."""
        return (
            f"{self.num_rows:,} rows in {self.num_zones:,} zones of {self.number_of_items:,}; "
            f"looked at {self.sampled_zones:,} zones, read {bytes_text(self.read_bytes)} in "
            f"{self.seconds:.1f} s"
        )

    def __str__(self) -> str:
        return "\n".join([self.title, table_text(*text_cells(self)), *self.reasons, *self.calls])

    def __repr__(self) -> str:
        columns = [advice.column for advice in self.advices if advice.index_type]
        return f"<Advices: index {', '.join(columns) or 'no column'}; {self.title}>"

    def _repr_html_(self) -> str:
        rows = [[*_cells(advice).values(), advice.why] for advice in self.advices]
        table = table_html([*_HEADERS, "why"], rows)
        page_sizes = list_html(filter(None, [self.page_sizes]))
        calls = lines_html("\n".join(self.calls))
        return styled_html(title_html(self.title), table, page_sizes, calls)


_HEADERS = ["column", "type", "nulls", "distinct", "in a zone", "zones read", "verdict"]


def text_cells(advices: Sequence[Advice]) -> tuple[list[str], list[list[object]]]:
    """Return the headers and the cells of a table that fits into a terminal."""
    headers = [name for name in _HEADERS if name != "type"]
    return headers, [[_cells(advice)[name] for name in headers] for advice in advices]


def _cells(advice: Advice) -> dict[str, object]:
    """Return the cells of a column in the order of the headers."""
    cells: dict[str, object] = dict.fromkeys(_HEADERS, "-")
    verdict = advice.verdict.partition(":")[0]
    if advice.index_type is not None:
        unit = advice.options.get("tokens")
        verdict = f"{advice.index_type} of {unit}" if unit else advice.index_type
    cells |= {"column": advice.column, "type": advice.type, "verdict": verdict}
    if advice.distinct is not None:
        low = _count_text(min(advice.zones_per_value or 0, advice.zones_read or 0))
        high = _count_text(advice.zones_read or 0)
        cells["nulls"] = f"{advice.null_share or 0:.0%}"
        cells["distinct"] = _count_text(advice.distinct)
        cells["in a zone"] = _count_text(round(advice.distinct_per_zone or 0))
        cells["zones read"] = high if low == high else f"{low} to {high}"
    return cells


def _count_text(count: float) -> str:
    """Return a count with three digits, and a small mean with one decimal place."""
    is_small_mean = isinstance(count, float) and count < 9.95
    return f"{count:,.1f}" if is_small_mean else f"{float(f'{count:.3g}'):,.0f}"


def with_verdict(
    advice: Advice,
    *,
    num_rows: int,
    num_zones: int,
    is_asked_by_range: bool,
    existing: Mapping[str, str],
) -> Advice:
    """Return the advice with a verdict on its figures.

    ``advice.options`` are those of an index of the column. ``existing`` has the kinds of the
    indices on the same keys, by their names.
    """
    verdict, index_type, why = _verdict(advice, num_rows, num_zones, is_asked_by_range)
    # An index of keys also serves sorted values. A ZONEMAP does not serve scattered ones.
    serving = [
        f"{name} ({kind})"
        for name, kind in existing.items()
        if kind != "ZONEMAP" or index_type in (None, "ZONEMAP")
    ]
    if serving and verdict == FEW_VALUES:
        why = f"{why}; {', '.join(serving)} saves little"
    elif serving and verdict in (INDEX, RARELY_LOOKED_UP):
        verdict, index_type, why = INDEXED, None, f"{', '.join(serving)} exists; {why}"
    options = advice.options
    if index_type is None:
        options = {}
    elif existing:
        # The default name may be that of the other index, which would be replaced.
        options = {"name": f"{advice.column}_{index_type.lower()}_idx", **options}
    return replace(advice, verdict=verdict, index_type=index_type, why=why, options=options)


def _verdict(
    figures: Advice, num_rows: int, num_zones: int, is_asked_by_range: bool
) -> tuple[str, str | None, str]:
    """Return the verdict, the kind of index if it is worth it, and the reason."""
    if num_zones < 2:
        size = "is one zone" if num_zones == 1 else "are no rows"
        return FEW_ROWS, None, f"there {size}, so there is nothing to skip"
    if figures.null_share == 1:
        return ONLY_NULLS, None, "no sampled row has a value, so there is no key to look up"
    of_all = f"of {num_zones:,} zones"
    zones_read, per_value = figures.zones_read or 0, figures.zones_per_value or 0
    in_bounds = figures.zones_in_bounds
    if in_bounds is not None and in_bounds <= _MAX_ROW_KEY_SHARE * num_zones:
        max_in_bounds = max(_MAX_BOUNDS_FACTOR * zones_read, zones_read + _MAX_MORE_ZONES)
        if is_asked_by_range or in_bounds <= max_in_bounds:
            order = "sorted" if in_bounds < 3 else "clustered"
            why = f"{order}: least and greatest values leave {_count_text(in_bounds)} {of_all}"
            return INDEX, "ZONEMAP", why
    why = f"a lookup reads {_count_text(zones_read)} {of_all}"
    is_of_words = "tokens" in figures.options
    unit = "word" if is_of_words else "value"
    if zones_read > _MAX_ROW_KEY_SHARE * num_zones:
        if (zones_read + per_value) / 2 >= _MAX_USEFUL_SHARE * num_zones:
            distinct = figures.distinct or 0
            why = (
                f"{_count_text(distinct)} distinct {unit}{'s'[: distinct != 1]}; the "
                f"{unit} of a random row is in {_count_text(zones_read)} {of_all}"
            )
            return FEW_VALUES, None, why
        why = (
            f"a {unit} is in {_count_text(per_value)} {of_all} on average, the {unit} of a random "
            f"row in {_count_text(zones_read)}"
        )
        why = why if is_of_words else f"for rare values: {why}"
    if is_asked_by_range:
        why = f"values of {figures.type} are asked for by range, and a range is in most zones"
        return RARELY_LOOKED_UP, None, why
    if is_of_words:
        why = f"texts of several words: {why}"
    if num_rows >= _MIN_HASH_ROWS:
        why = f"{why}; HASH is for tables of {_MIN_HASH_ROWS:,} rows or more"
        return INDEX, "HASH", why
    return INDEX, DEFAULT_KIND, why
