"""Datasets whose files store a column in different types, and all requests for a key of theirs."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import zonebloom as zb

_MOMENT = dt.datetime(2024, 1, 1)
_D = decimal.Decimal


class Pair(NamedTuple):
    """The type and the values of a first file, and the type and the only value of a later one."""

    first: pa.DataType
    values: list[Any]
    later: pa.DataType
    key: Any
    # Whether the first type holds the key.
    fits: bool = False

    @property
    def plain(self) -> pa.DataType:
        """The later type without a dictionary."""
        later: Any = self.later
        return later.value_type if pa.types.is_dictionary(later) else later

    @property
    def name(self) -> str:
        return f"{self.first}, then {self.later}{' that fits' if self.fits else ''}"


_INTEGERS = [1, 2, 3]
PAIRS = (
    Pair(pa.int8(), _INTEGERS, pa.int32(), 70_000),
    Pair(pa.int32(), _INTEGERS, pa.int64(), 10**12 + 5),
    Pair(pa.int32(), _INTEGERS, pa.int64(), 7, fits=True),
    Pair(pa.int64(), _INTEGERS, pa.int32(), 7, fits=True),
    Pair(pa.uint32(), _INTEGERS, pa.int64(), -5),
    Pair(pa.int32(), _INTEGERS, pa.uint32(), 2**32 - 1),
    Pair(pa.int64(), _INTEGERS, pa.uint64(), 2**63 + 5),
    Pair(pa.uint64(), _INTEGERS, pa.int64(), -5),
    Pair(pa.int64(), _INTEGERS, pa.float64(), 1.5),
    Pair(pa.float32(), [1.0, 2.0], pa.float64(), 0.1),
    Pair(pa.float64(), [1.0, 2.0], pa.float32(), 0.5, fits=True),
    Pair(pa.int64(), _INTEGERS, pa.decimal128(20, 2), _D("1.25")),
    Pair(pa.decimal128(9, 2), [_D("1.00")], pa.decimal128(12, 4), _D("1.2345")),
    Pair(pa.decimal128(9, 2), [_D("1.00")], pa.decimal128(18, 2), _D(10**12)),
    Pair(pa.decimal128(18, 2), [_D("1.00")], pa.decimal128(9, 2), _D("2.00"), fits=True),
    Pair(pa.timestamp("us"), [_MOMENT], pa.timestamp("ns"), 1_704_067_200_000_000_001),
    Pair(pa.timestamp("ms"), [_MOMENT], pa.timestamp("us"), _MOMENT.replace(microsecond=1)),
    Pair(pa.timestamp("us"), [_MOMENT], pa.timestamp("ms"), _MOMENT.replace(second=1), fits=True),
    Pair(pa.date32(), [_MOMENT.date()], pa.timestamp("us"), _MOMENT.replace(hour=1)),
    Pair(pa.null(), [None, None], pa.string(), "C7"),
    Pair(pa.null(), [None, None], pa.int64(), 7),
    Pair(pa.binary(8), [b"12345678"], pa.binary(), b"long enough"),
    Pair(pa.string(), ["a"], pa.binary(), b"\xff\xfe"),
    Pair(pa.string(), ["a"], pa.dictionary(pa.int32(), pa.string()), "b", fits=True),
)


def write_file(folder: Path, number: int, values: list[Any], kind: Any) -> None:
    """Write a file with the values in column k, and the number of the file in column v."""
    folder.mkdir(parents=True, exist_ok=True)
    is_dictionary = pa.types.is_dictionary(kind)
    column = pa.array(values, kind.value_type if is_dictionary else kind)
    column = column.dictionary_encode() if is_dictionary else column
    table = pa.table({"k": column, "v": pa.array([number] * len(values), pa.int64())})
    pq.write_table(table, folder / f"{number}.parquet")


def requests_for_key(ds: zb.Dataset, pair: Pair) -> dict[str, Callable[[], int]]:
    """Return functions that ask for the key of the later file, and return how often it is found."""
    value, plain, other = pair.key, pair.plain, pair.values[0]
    keys, scalar = pa.array([value], plain), pa.scalar(value, plain)
    literal = _sql_literal(value, plain)
    sql, pairs = f"k = {literal}", pa.table({"k": keys, "v": [1]})
    series = pl.Series(pl.from_arrow(keys))
    by_duckdb = f"from_hex('{value.hex()}')" if isinstance(value, bytes) else literal
    both = _with_other(keys, other)
    requests: dict[str, Callable[[], int]] = {
        "SQL": lambda: ds.to_table(filter=sql).num_rows,
        "count_rows": lambda: ds.scanner(filter=sql).count_rows(),
        "no index": lambda: ds.to_table(filter=sql, use_scalar_index=False).num_rows,
        "other columns": lambda: ds.to_table(["v"], filter=sql).num_rows,
        "addresses": lambda: ds.scanner(["v"], sql, with_row_address=True).to_table().num_rows,
        "search": lambda: ds.search(sql).to_table().num_rows,
        "AND": lambda: ds.to_table(filter=f"{sql} AND v >= 0").num_rows,
        "OR": lambda: ds.to_table(filter=f"{sql} OR v = -1").num_rows,
        "arrow": lambda: ds.to_table(filter=pc.field("k") == scalar).num_rows,
        "isin": lambda: ds.to_table(filter=pc.field("k").isin(keys)).num_rows,
        "DNF": lambda: ds.to_table(filter=[("k", "in", [value])]).num_rows,
        "Polars": lambda: ds.to_table(filter=pl.col("k") == series[0]).num_rows,
        "lazy": lambda: ds.to_polars().filter(pl.col("k") == series[0]).collect().height,
        "lazy is_in": lambda: _find_by_polars(ds, series),
        "lookup": lambda: ds.lookup("k", keys).num_rows,
        "locate": lambda: 1 - ds.locate("k", keys)["row"].null_count,
        "files_with_keys": lambda: ds.files_with_keys("k", keys).num_rows,
        "locate pairs": lambda: 1 - ds.locate(["k", "v"], pairs)["row"].null_count,
        "locate many": lambda: _locate_many(ds, keys),
    }
    # DuckDB casts a column of dates to timestamps itself, after PyArrow has cut them.
    if not pa.types.is_date(pair.first):
        requests["DuckDB"] = lambda: _count_by_duckdb(ds, f"k = {by_duckdb}")
    if not isinstance(value, bytes | str):
        bounds = f"k >= {literal} AND k <= {literal}"
        requests["range"] = lambda: ds.to_table(filter=bounds).num_rows
    if both is not None:
        listed = f"k IN ({literal}, {_sql_literal(other, plain)})"
        requests |= {
            "IN": lambda: ds.to_table(filter=listed).num_rows - 1,
            "isin both": lambda: ds.to_table(filter=pc.field("k").isin(both)).num_rows - 1,
            "lazy both": lambda: _find_by_polars(ds, pl.Series(pl.from_arrow(both))) - 1,
            "lookup both": lambda: ds.lookup("k", both).num_rows - 1,
            "locate both": lambda: 1 - ds.locate("k", both)["row"].null_count,
        }
    return requests


def _sql_literal(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if pa.types.is_timestamp(kind):
        return f"TIMESTAMP '{pa.scalar(value, kind).cast(pa.string())}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


def _with_other(keys: pa.Array, other: Any) -> Any:
    """Return the key with a value of the first file, or None if their types differ too much."""
    if other is None:
        return None
    try:
        return pa.concat_arrays([keys, pa.array([other], keys.type)])
    except pa.ArrowException:
        return None


def _find_by_polars(ds: zb.Dataset, keys: pl.Series) -> int:
    return ds.to_polars().filter(pl.col("k").is_in(keys.implode())).collect().height


def _locate_many(ds: zb.Dataset, keys: pa.Array) -> int:
    many = pa.concat_arrays([keys] * 20_000)
    return 20_000 - ds.locate("k", many)["row"].null_count


def _count_by_duckdb(ds: zb.Dataset, condition: str) -> int:
    with duckdb.connect() as connection:
        connection.register("files", ds)
        return connection.sql(f"SELECT count(*) FROM files WHERE {condition}").fetchall()[0][0]
