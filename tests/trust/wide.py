"""Compare lookups and projections over thousands of columns of random types with plain Python.

Files are small and wide. Later files may lack columns, or have them in another order.
"""

from __future__ import annotations

import datetime
import random
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from trust.report import Report

import zonebloom as zb

LOOKUPS = 40
WIDTHS = (300, 1000, 3000)

# Each type has only a few values, so that keys repeat, and a function that writes one in SQL.
_TEXTS = ["", "a", "é😀", "it's", "x" * 300]
_DAYS = [datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]
_MOMENTS = [datetime.datetime(1970, 1, 1), datetime.datetime(2024, 2, 29, 12, 30, 1, 5)]
KINDS: list[tuple[pa.DataType, list[Any]]] = [
    *((kind, [0, 1, 7, 100, 127]) for kind in (pa.int8(), pa.uint8(), pa.uint64())),
    *((kind, [-5, 0, 9, 2**31 - 1]) for kind in (pa.int32(), pa.int64())),
    *((kind, [-1.5, 0.0, 0.25, 1e9]) for kind in (pa.float32(), pa.float64())),
    *((kind, _TEXTS) for kind in (pa.string(), pa.large_string())),
    (pa.dictionary(pa.int32(), pa.string()), _TEXTS),
    *((kind, [b"", b"a", b"\x00\xff"]) for kind in (pa.binary(), pa.large_binary())),
    (pa.binary(2), [b"ab", b"\x00\xff"]),
    (pa.bool_(), [True, False]),
    (pa.date32(), _DAYS),
    *((pa.timestamp(unit), _MOMENTS) for unit in ("us", "ns")),
    (pa.decimal128(9, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("99.25")]),
]


def written(value: Any) -> str:
    """Return a value as a literal of SQL."""
    match value:
        case bool():
            return str(value).upper()
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bytes():
            return f"X'{value.hex()}'"
        case datetime.datetime():
            return f"TIMESTAMP '{value.isoformat(' ')}'"
        case datetime.date():
            return f"DATE '{value}'"
    return str(value)


class _Column:
    def __init__(self, number: int, rng: random.Random):
        self.kind, self.values = rng.choice(KINDS)
        self.nulls = rng.choice([0, 0, 0.3, 1])
        # This is a struct of one leaf. An index takes a dotted path, so its name has no dot.
        self.inner = "leaf" if rng.random() < 0.05 else None
        has_dot = self.inner is None and rng.random() < 0.1
        self.name = f"C {number}.x" if has_dot else f"c{number}"

    def draw(self, rows: int, rng: random.Random) -> list[Any]:
        return [None if rng.random() < self.nulls else rng.choice(self.values) for _ in range(rows)]

    def array(self, values: list[Any]) -> pa.Array:
        if pa.types.is_dictionary(self.kind):
            leaf = pa.array(values, pa.string()).dictionary_encode()
        else:
            leaf = pa.array(values, self.kind)
        return leaf if self.inner is None else pa.StructArray.from_arrays([leaf], [self.inner])

    @property
    def text(self) -> str:
        """Return the column, or its leaf, in SQL."""
        return f'"{self.name}"' + (f".{self.inner}" if self.inner else "")

    @property
    def path(self) -> str:
        return f"{self.name}.{self.inner}" if self.inner else self.name


class _Lake:
    """Write the files, and return the values of each column as Python objects."""

    def __init__(self, folder: Path, width: int, rng: random.Random):
        self.columns = [_Column(number, rng) for number in range(width)]
        self.values: dict[str, list[Any]] = {column.name: [] for column in self.columns}
        self.num_rows = 0
        folder.mkdir()
        for number in range(rng.randint(1, 3)):
            self._write(folder / f"{number}.parquet", number, rng)

    def _write(self, path: Path, number: int, rng: random.Random) -> None:
        rows = rng.choice([1, 5, 40])
        arrays = {"row": pa.array(range(self.num_rows, self.num_rows + rows))}
        columns = list(self.columns)
        if number:
            rng.shuffle(columns)
        for column in columns:
            if number and rng.random() < 0.1:
                values = [None] * rows
            else:
                values = column.draw(rows, rng)
                arrays[column.name] = column.array(values)
            self.values[column.name] += values
        self.num_rows += rows
        pq.write_table(
            pa.table(arrays),
            path,
            row_group_size=rng.choice([3, 20, 1000]),
            write_page_index=rng.random() < 0.7,
            use_dictionary=rng.random() < 0.5,
            compression=rng.choice(["snappy", "none", "zstd"]),
            data_page_version=rng.choice(["1.0", "2.0"]),
        )

    def rows_with(self, column: _Column, keys: list[Any]) -> list[int]:
        return [row for row, value in enumerate(self.values[column.name]) if value in keys]


def run_case(
    report: Report, number: int, folder: Path, width: int | None = None, lookups: int = LOOKUPS
) -> None:
    """Check lookups in one dataset before and after some of its columns are indexed."""
    rng = report.begin(number)
    lake = _Lake(folder / "wide", width or rng.choice(WIDTHS), rng)
    ds = zb.dataset(folder / "wide")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zb.errors.ZoneBloomWarning)
        for is_indexed in (False, True):
            indexed: list[_Column] = []
            if is_indexed:
                able = [column for column in lake.columns if not pa.types.is_boolean(column.kind)]
                indexed = rng.sample(able, 4)
                paths = [column.path for column in indexed]
                ds.create_scalar_index(paths, number_of_items=4, spark=False)
            for _ in range(lookups // 2):
                column = rng.choice(indexed if indexed and rng.random() < 0.6 else lake.columns)
                _look_up(report, ds, lake, column, rng)


def _look_up(
    report: Report, ds: zb.Dataset, lake: _Lake, column: _Column, rng: random.Random
) -> None:
    keys = rng.sample(column.values, rng.randint(1, 2))
    filter = f"{column.text} IN ({', '.join(map(written, keys))})"
    wanted = lake.rows_with(column, keys)
    if rng.random() < 0.3:
        other = rng.choice(lake.columns)
        key = rng.choice(other.values)
        filter += f" AND {other.text} = {written(key)}"
        wanted = sorted(set(wanted).intersection(lake.rows_with(other, [key])))
    projection = rng.choice([None, [], rng.sample(lake.columns, 2), rng.sample(lake.columns, 100)])
    names = None if projection is None else ["row", *(column.name for column in projection)]
    report.tried["all columns" if names is None else f"{len(names) - 1} columns"] += 1
    answer = ds.to_table(names, filter)
    lookup = f"{filter} ({column.kind})"
    if answer["row"].to_pylist() != wanted:
        report.fail(f"{lookup}: rows {answer['row'].to_pylist()[:9]}, not {wanted[:9]}")
        return
    for output in lake.columns if projection is None else projection:
        values = answer[output.name].to_pylist()
        expected = [lake.values[output.name][row] for row in wanted]
        if output.inner:
            values = [value and value[output.inner] for value in values]
        if values != expected:
            report.fail(f"{lookup}: column {output.name} ({output.kind}) is {values[:5]}")
