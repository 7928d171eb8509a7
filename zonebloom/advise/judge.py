"""The advice on a column: estimated figures, and the verdict whether an index is worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zonebloom.advise.kinds import BLOOM_TYPE, HASH_TYPE, KindEstimate, choose_kind, zone_count_text
from zonebloom.base import arguments
from zonebloom.base.display import Displayed, list_html, styled_html, table_html, title_html
from zonebloom.base.text import bytes_text, table_text
from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS
from zonebloom.errors import ColumnNotFound
from zonebloom.index.hash.parameters import DEFAULT_ZONE_ROWS
from zonebloom.sbbf.sizing import DEFAULT_ZONE_PROBABILITY

INDEX = "index"
KEY_RANGES = "key ranges suffice"
FEW_VALUES = "too few distinct values"
MEASURE = "a measure"
FEW_ROWS = "too few rows"
ONLY_NULLS = "nothing but nulls"
FROM_PATHS = "read from paths"
NOT_INDEXABLE = "not indexable"

# A lookup that reads a larger share of the zones gains little over a scan. The share is the mean
# for two keys: that of a random row, which is often a frequent value, and a random distinct value.
_MAX_USEFUL_SHARE = 0.7
# If the key of a random row is in a larger share of the zones, only rare values may need an index.
_MAX_ROW_KEY_SHARE = 0.5
# Key ranges are as good as an index if they leave at most this factor of its zones, or at most this
# many more.
_MAX_RANGE_FACTOR = 1.5
_MAX_MORE_ZONES = 2


@dataclass(frozen=True, slots=True)
class Advice(Displayed):
    """The estimated costs and savings of an index on one column.

    Attributes
    ----------
    column, type : str
    verdict : str
        "index", "key ranges suffice", "too few distinct values", "a measure" (numbers with
        fractions and durations, which are rarely looked up by equality), "too few rows", "nothing
        but nulls", "read from paths", or "not indexable: " with the reason.
    why : str
        The reason of the verdict, a sentence.
    num_rows, num_zones : int
        Rows and zones of the dataset.
    null_share : float or None
        The share of rows that are null. This and all further figures are None for a column that
        cannot be indexed.
    distinct : int or None
        The number of distinct values in the dataset.
    distinct_per_zone : float or None
        The mean number of distinct values in a zone.
    index_bytes, index_bytes_unfolded : int or None
        The size of the filters by default, and with ``fold=False``.
    build_seconds : float or None
        The time to read, hash and insert all rows on the cores of this process, without the time
        to write the index.
    zones_with_index : float or None
        The zones that a lookup reads for the key of a random row: zones that hold the key, and
        false positives.
    zones_with_key_ranges : float or None
        The zones that the same lookup reads if only the minimum and maximum of each zone are
        known. None if the type has no key ranges. Without index and key ranges, a lookup reads
        all `num_zones`.
    zones_per_value : float or None
        The mean number of zones that hold a value, over all distinct values. It is less than
        `zones_with_index` if a few values are frequent and most are rare.
    zones_if_absent : float or None
        The zones that a lookup reads for a key that no row has: false positives.
    index_type : str or None
        The better kind of index for the column, "HASH" or "BLOOMFILTER". None if the verdict is
        not to index it.
    why_index_type : str
        The reason for the kind, or "".
    kinds : tuple of KindEstimate
        What an index of each kind would cost and save. The figures above are those of
        "BLOOMFILTER".
    options : dict
        Further arguments of `Dataset.create_scalar_index`, for an index of tokens.
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
    index_bytes_unfolded: int | None = None
    build_seconds: float | None = None
    zones_with_index: float | None = None
    zones_with_key_ranges: float | None = None
    zones_per_value: float | None = None
    zones_if_absent: float | None = None
    index_type: str | None = None
    why_index_type: str = ""
    kinds: tuple[KindEstimate, ...] = ()
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.column}: {self.why}"

    @property
    def verdict_and_type(self) -> str:
        """The verdict without its reason, and the better kind, such as "index as HASH"."""
        verdict = self.verdict.partition(":")[0]
        return verdict if self.index_type is None else f"{verdict} as {self.index_type}"

    def estimate(self, index_type: str) -> KindEstimate:
        """Return the estimate for a kind, such as "HASH".

        >>> ds.advise("id")["id"].estimate("HASH").num_zones
        3
        """
        for estimate in self.kinds:
            if estimate.index_type == index_type.upper():
                return estimate
        known_kinds = ", ".join(estimate.index_type for estimate in self.kinds) or "none"
        raise arguments.invalid_value(
            index_type, "index_type", f"there is an estimate for {known_kinds}"
        )

    @property
    def is_worth_it(self) -> bool:
        """True if the verdict is to index the column."""
        return self.verdict == INDEX


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
        A line about the pages of the columns that are worth an index, if smaller pages would make
        lookups much cheaper, else "".
    probability : float
        The target false positive probability of a zone of the kind "BLOOMFILTER".

    Examples
    --------
    >>> advices = ds.advise(["id", "day"], number_of_items=100)
    >>> advices.worth_it_by_type
    {'BLOOMFILTER': ['id']}
    >>> print(*advices.calls)
    ds.create_scalar_index('id', 'BLOOMFILTER', number_of_items=100)
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
    page_sizes: str = ""
    probability: float = DEFAULT_ZONE_PROBABILITY

    def __len__(self) -> int:
        return len(self.advices)

    def __getitem__(self, key: int | str | slice) -> Advice | tuple[Advice, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
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
    def worth_it(self) -> list[str]:
        """The names of the columns that are worth an index, for `create_scalar_index`."""
        return [advice.column for advice in self.advices if advice.is_worth_it]

    @property
    def worth_it_by_type(self) -> dict[str, list[str]]:
        """The columns that are worth an index, by the better kind of index."""
        columns: dict[str, list[str]] = {}
        for advice in self.advices:
            if advice.index_type is not None:
                columns.setdefault(advice.index_type, []).append(advice.column)
        return columns

    @property
    def parameters_by_type(self) -> dict[str, dict[str, float]]:
        """The parameters of these indices that are not the defaults of their kind."""
        hash_items = min(self.number_of_items, DEFAULT_ZONE_ROWS)
        values_and_defaults = {
            BLOOM_TYPE: {
                "number_of_items": (self.number_of_items, DEFAULT_NUMBER_OF_ITEMS),
                "probability": (self.probability, DEFAULT_ZONE_PROBABILITY),
            },
            HASH_TYPE: {"number_of_items": (hash_items, DEFAULT_ZONE_ROWS)},
        }
        return {
            index_type: {name: value for name, (value, usual) in pairs.items() if value != usual}
            for index_type, pairs in values_and_defaults.items()
        }

    @property
    def options(self) -> dict[str, Any]:
        """Further arguments of these calls, which are the same for all columns."""
        return next((advice.options for advice in self.advices if advice.options), {})

    @property
    def calls(self) -> list[str]:
        """The calls that build the indices, as Python code for a dataset ``ds``."""
        calls: list[str] = []
        for index_type, columns in self.worth_it_by_type.items():
            names = columns[0] if len(columns) == 1 else columns
            parameters = self.parameters_by_type[index_type].items()
            arguments_text = ", ".join(
                [
                    repr(names),
                    repr(index_type),
                    *(f"{name}={value!r}" for name, value in (*self.options.items(), *parameters)),
                ]
            )
            calls.append(f"ds.create_scalar_index({arguments_text})")
        return calls

    def __str__(self) -> str:
        # A table with all columns is wider than a terminal.
        headers, *rows = [
            [row[position] for position in _TERMINAL_COLUMNS]
            for row in (_HEADERS, *map(_cells, self.advices))
        ]
        table = table_text(list(map(str, headers)), rows)
        return "\n".join([self._title(), table, *self.reasons, *self.calls])

    @property
    def reasons(self) -> list[str]:
        """Lines with the reasons of the verdicts and of the kinds, and about the sizes of pages."""
        columns: dict[str, list[str]] = {}
        for advice in self.advices:
            if advice.index_type is not None:
                reason = f"{advice.index_type}, because {advice.why_index_type}"
                columns.setdefault(reason, []).append(advice.column)
        kinds = [f"{', '.join(names)}: {reason}" for reason, names in columns.items()]
        return [*map(str, self.advices), *kinds, *([self.page_sizes] if self.page_sizes else [])]

    def __repr__(self) -> str:
        return f"<Advices: index {', '.join(self.worth_it) or 'no column'}; {self._title()}>"

    def _repr_html_(self) -> str:
        table = table_html(_HEADERS, list(map(_cells, self.advices)))
        rows = [
            _kind_cells(advice, estimate)
            for advice in self.advices
            if advice.is_worth_it
            for estimate in advice.kinds
        ]
        kinds = [table_html(_KIND_HEADERS, rows)] if rows else []
        lines = list_html([*self.reasons, *self.calls])
        return styled_html(title_html(self._title()), table, *kinds, lines)

    def _title(self) -> str:
        rows, zones = f"{self.num_rows:,} rows", f"{self.num_zones:,} zones"
        return (
            f"{rows} in {zones} of {self.number_of_items:,}; looked at {self.sampled_zones:,} "
            f"zones, read {bytes_text(self.read_bytes)} in {self.seconds:.1f} s"
        )


_HEADERS = [
    *("column", "verdict", "type", "nulls", "distinct", "size", "as HASH", "unfolded"),
    *("build", "zones read", "of a value", "by key ranges"),
]

_TERMINAL_COLUMNS = [
    _HEADERS.index(name)
    for name in ("column", "type", "distinct", "size", "as HASH", "zones read", "verdict")
]

_KIND_HEADERS = [
    *("column", "kind", "size", "rows of a zone", "zones read", "rows read"),
    *("first lookup reads", "false zones", "in a billion rows", "memory of a build"),
]


def _cells(advice: Advice) -> list[object]:
    if advice.distinct is None:
        return [advice.column, advice.verdict_and_type, advice.type, *["-"] * (len(_HEADERS) - 3)]
    return [
        advice.column,
        advice.verdict_and_type,
        advice.type,
        f"{advice.null_share or 0:.0%}",
        f"{_round_to_three_digits(advice.distinct):,}",
        bytes_text(advice.index_bytes or 0),
        bytes_text(advice.estimate(HASH_TYPE).index_bytes),
        bytes_text(advice.index_bytes_unfolded or 0),
        f"{advice.build_seconds or 0:.1f} s",
        _zones_text(advice.zones_with_index),
        _zones_text(advice.zones_per_value),
        _zones_text(advice.zones_with_key_ranges),
    ]


def _kind_cells(advice: Advice, estimate: KindEstimate) -> list[object]:
    is_better = estimate.index_type == advice.index_type
    build_bytes = estimate.build_bytes
    return [
        advice.column,
        f"{estimate.index_type} (better)" if is_better else estimate.index_type,
        bytes_text(estimate.index_bytes),
        f"{estimate.number_of_items:,}",
        _zones_text(estimate.zones_with_index),
        f"{_round_to_three_digits(round(estimate.rows_with_index)):,}",
        bytes_text(estimate.lookup_bytes),
        zone_count_text(estimate.false_zones),
        zone_count_text(estimate.false_zones_per_billion),
        "-" if build_bytes is None else bytes_text(build_bytes),
    ]


def _round_to_three_digits(count: int) -> int:
    return count if count < 1000 else round(count, 3 - len(str(count)))


def _zones_text(zones: float | None) -> str:
    if zones is None:
        return "-"
    return f"{zones:,.1f}" if zones < 9.95 else f"{zones:,.0f}"


def with_verdict(
    advice: Advice,
    no_ranges: str,
    row_group_zones: float,
    is_measure: bool = False,
    is_of_values: bool = True,
) -> Advice:
    """Return the advice with a verdict on its figures.

    ``no_ranges`` is the reason why the minima and maxima in the files are not used, or "".
    ``row_group_zones`` is the number of zones in a row group. ``is_of_values`` says whether the
    index would hold the values of the column.
    """
    verdict, reason = _verdict(advice, no_ranges, row_group_zones)
    if verdict == INDEX and is_measure:
        verdict = MEASURE
        reason = f"values of {advice.type} are measured, not looked up; if they were, {reason}"
    advice = replace(advice, verdict=verdict, why=reason)
    if not advice.is_worth_it:
        return advice
    bloom, hashed = advice.estimate(BLOOM_TYPE), advice.estimate(HASH_TYPE)
    index_type, why_index_type = choose_kind(
        bloom, hashed, advice.num_rows, is_for_lance=is_of_values
    )
    return replace(advice, index_type=index_type, why_index_type=why_index_type)


def _verdict(figures: Advice, no_ranges: str, row_group_zones: float) -> tuple[str, str]:
    num_zones = figures.num_zones
    if num_zones < 2:
        size = "is one zone" if num_zones == 1 else "are no rows"
        return FEW_ROWS, f"there {size}, so there is nothing to skip"
    if figures.null_share == 1:
        return ONLY_NULLS, "no sampled row has a value, so there is no key to look up"
    zones_read, all_zones = figures.zones_with_index or 0, f"{num_zones:,} zones"
    per_value, distinct = figures.zones_per_value or 0, figures.distinct or 0
    if zones_read > _MAX_ROW_KEY_SHARE * num_zones:
        if (zones_read + per_value) / 2 < _MAX_USEFUL_SHARE * num_zones:
            return INDEX, (
                f"for rare values: a value is in {_zones_text(per_value)} of {all_zones} on "
                f"average, the value of a random row in {_zones_text(zones_read)}"
            )
        noun = "value" if distinct == 1 else "values"
        return FEW_VALUES, (
            f"{_round_to_three_digits(distinct):,} distinct {noun}; the value of a random row is "
            f"in {_zones_text(zones_read)} of {all_zones}"
        )
    zones_with_ranges = figures.zones_with_key_ranges
    finding = f"a lookup reads {_zones_text(zones_read)} of {all_zones}"
    if zones_with_ranges is None:
        return INDEX, f"{finding}; the type has no key ranges"
    comparison = f"key ranges alone leave {_zones_text(zones_with_ranges)}"
    if zones_with_ranges > max(_MAX_RANGE_FACTOR * zones_read, zones_read + _MAX_MORE_ZONES):
        return INDEX, f"{finding}; {comparison}"
    if no_ranges:
        return INDEX, f"{finding}; {comparison}, but {no_ranges}"
    order = "sorted" if zones_with_ranges < 3 else "clustered"
    reason = f"{order}: {comparison} of {all_zones}, and Parquet keeps them"
    if row_group_zones < 2 * zones_with_ranges:
        return KEY_RANGES, reason
    return KEY_RANGES, (
        f"{reason}; readers that skip only row groups read about {_zones_text(row_group_zones)}, "
        "so keep row groups small, or build a ZONEMAP, which also answers ranges"
    )
