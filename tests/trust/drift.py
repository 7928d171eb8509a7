"""Compare lookups in files that store a column in different types with plain Python.

Files come one by one, each with a random type, and an index is built and refreshed between them. A
lookup finds exactly the rows of its keys, or is refused.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from trust.report import Report

import zonebloom as zb
from zonebloom.errors import ZoneBloomError

LOOKUPS = 30
_NUMBERS = [-5, 0, 1, 100, 127, 128, 255, 40_000, 70_000, 2**31 - 1, 2**32 - 1, 10**12 + 5]
_FRACTIONS = [Decimal("0.5"), Decimal("1.25"), Decimal("-2.5"), Decimal("1.2345")]
_DECIMALS = [pa.decimal128(9, 2), pa.decimal128(12, 4), pa.decimal128(18, 2)]
# Types of which a column may have several, and the values from which those of each type are drawn.
FAMILIES: list[tuple[list[Any], list[Any]]] = [
    (
        [
            *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
            *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
            *(pa.float32(), pa.float64(), *_DECIMALS, pa.null()),
        ],
        [*map(Decimal, _NUMBERS), *_FRACTIONS],
    ),
    (
        [*map(pa.timestamp, ("s", "ms", "us", "ns")), pa.null()],
        [1_700_000_000 * 10**9 + fraction for fraction in (0, 10**9, 10**6, 10**3, 1)],
    ),
    (
        [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.null()],
        ["", "a", "é", "x" * 40],
    ),
    ([pa.binary(3), pa.binary(), pa.large_binary(), pa.null()], [b"abc", b"xyz", b"", b"abcd"]),
]
_TICKS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
KINDS: list[dict[str, Any]] = [
    {"number_of_items": 4},
    {"index_type": "HASH"},
    {"index_type": "ZONEMAP", "number_of_items": 4},
]


def _array(values: list[Any], kind: Any) -> pa.Array:
    """Return values as an array of a type. Raise an error if one does not fit."""
    if pa.types.is_timestamp(kind):
        ticks = _TICKS[kind.unit]
        if any(value % ticks for value in values):
            raise ValueError("a value is finer than the unit")
        return pa.array([value // ticks for value in values], pa.int64()).cast(kind)
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode()
    if pa.types.is_null(kind):
        return pa.nulls(len(values))
    if pa.types.is_floating(kind):
        array = pa.array([float(value) for value in values], kind)
        if [Decimal(number) for number in array.to_pylist()] != values:
            raise ValueError("a value is rounded")
        return array
    if pa.types.is_integer(kind) and any(value % 1 for value in values):
        raise ValueError("a value is no integer")
    return pa.array(values, kind)


def _fits(value: Any, kind: Any) -> bool:
    try:
        return _array([value], kind) is not None
    except (pa.ArrowException, ValueError, OverflowError):
        return False


class _Lake:
    """The files, and the value of each row."""

    def __init__(self, folder: Path, rng: random.Random):
        self.folder = folder
        self.types, self.domain = rng.choice(FAMILIES)
        self.values: list[Any] = []
        self.num_files = 0
        folder.mkdir()

    def add_file(self, rng: random.Random) -> None:
        kind = rng.choice(self.types)
        able = [value for value in self.domain if _fits(value, kind)]
        values = rng.choices(able, k=rng.choice([1, 5, 30]))
        rows = pa.array(range(len(self.values), len(self.values) + len(values)))
        table = pa.table({"k": _array(values, kind), "row": rows})
        options = {"write_page_index": rng.random() < 0.5, "row_group_size": rng.choice([4, 100])}
        pq.write_table(table, self.folder / f"{self.num_files}.parquet", **options)
        self.values += [None] * len(values) if pa.types.is_null(kind) else values
        self.num_files += 1

    def rows_with(self, keys: list[Any]) -> list[int]:
        return [row for row, value in enumerate(self.values) if value in keys]

    def keys(self, values: list[Any]) -> pa.Array:
        """Return keys in a type that holds them and is compared with the others of the family."""
        types = [kind for kind in reversed(self.types) if not pa.types.is_dictionary(kind)]
        if isinstance(values[0], Decimal):
            is_whole = all(value % 1 == 0 for value in values)
            types = [pa.int64() if is_whole else pa.decimal128(30, 4)]
        return next(
            _array(values, kind)
            for kind in types
            if not pa.types.is_null(kind) and all(_fits(value, kind) for value in values)
        )


def _written(value: Any) -> str:
    match value:
        case int():
            return f"TIMESTAMP '{pa.scalar(value, pa.timestamp('ns')).cast(pa.string())}'"
        case str():
            return f"'{value}'"
        case bytes():
            return f"X'{value.hex()}'"
    return str(value)


def _requests(ds: zb.Dataset, lake: _Lake, values: list[Any]) -> dict[str, Callable[[], pa.Table]]:
    """Return ways to find the rows of values, each as a function that returns their numbers."""
    keys = lake.keys(values)
    one_set = f"k IN ({', '.join(map(_written, values))})"
    either = " OR ".join(f"k = {_written(value)}" for value in values)
    return {
        "IN": lambda: ds.to_table(["row"], one_set),
        "OR": lambda: ds.to_table(["row"], either),
        "isin": lambda: ds.to_table(["row"], pc.field("k").isin(keys)),
        "lookup": lambda: ds.lookup("k", keys),
        "locate": lambda: _rows_at(ds.locate("k", keys).drop_null()),
    }


def _rows_at(places: pa.Table) -> pa.Table:
    """Return the numbers of located rows."""
    rows = [
        pq.read_table(place["path"], columns=["row"]).slice(place["row"], 1)
        for place in places.to_pylist()
    ]
    return pa.concat_tables(rows) if rows else pa.table({"row": pa.array([], pa.int64())})


def run_case(report: Report, number: int, folder: Path, lookups: int = LOOKUPS) -> None:
    """Check lookups while files of other types come, and indices are built and refreshed."""
    rng = report.begin(number)
    lake = _Lake(folder / "drift", rng)
    lake.add_file(rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zb.errors.ZoneBloomWarning)
        for _ in range(rng.randint(1, 4)):
            if rng.random() < 0.8:
                lake.add_file(rng)
            schema: Any = rng.choice([None, None, "union"])
            try:
                ds = zb.dataset(lake.folder, schema=schema)
            except ZoneBloomError as error:
                report.refused[f"open: {type(error).__name__}"] += 1
                continue
            try:
                if rng.random() < 0.6:
                    ds.create_scalar_index("k", **rng.choice(KINDS), replace=True)
                elif rng.random() < 0.5:
                    ds.optimize.optimize_indices()
            except ZoneBloomError as error:
                report.refused[f"build: {type(error).__name__}"] += 1
            for _ in range(max(1, lookups // 10)):
                values = rng.sample(lake.domain, rng.randint(1, 2))
                _look_up(report, ds, lake, values)


def _look_up(report: Report, ds: zb.Dataset, lake: _Lake, values: list[Any]) -> None:
    wanted = lake.rows_with(values)
    for name, ask in _requests(ds, lake, values).items():
        report.tried[name] += 1
        try:
            rows = sorted(set(ask()["row"].to_pylist()))
        except ZoneBloomError as error:
            report.refused[f"{name}: {type(error).__name__}"] += 1
            continue
        if not set(wanted) <= set(rows):
            types = [pq.read_schema(path).field("k").type for path in sorted(lake.folder.iterdir())]
            report.fail(f"{name} of {values} in {types}: rows {rows[:9]}, not {wanted[:9]}")
