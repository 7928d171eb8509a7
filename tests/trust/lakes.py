"""Make random datasets: schemas, values, writers, and layouts on disk."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.feather
import pyarrow.parquet as pq
from pyarrow.parquet.encryption import create_decryption_properties, create_encryption_properties
from support.e2e_helpers import UNITS, array_of, is_ticks, raw_values
from support.helpers import PLAIN_TYPES
from support.parquet_writers import by_arro3, by_datafusion, by_duckdb, by_polars, by_pyarrow

import zonebloom as zb
from zonebloom.scan.recheck import gather

DICTIONARIES = [
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.int64()),
    pa.dictionary(pa.int16(), pa.large_string()),
]
TYPES = [*PLAIN_TYPES, *DICTIONARIES]
# Common types are drawn more often.
COMMON = [pa.int64(), pa.int32(), pa.string(), pa.float64(), pa.timestamp("us", "UTC"), pa.date32()]
LAYOUTS = ("none", "indexed", "folded", "stale", "partly covered", "embedded")
KEY = bytes(range(16))


# Values


def value_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type of a column's values, which for a dictionary type is its value type."""
    return arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type


def is_number(arrow_type: pa.DataType) -> bool:
    t = pa.types
    return t.is_integer(arrow_type) or t.is_floating(arrow_type) or t.is_decimal(arrow_type)


def exact(arrow_type: pa.DataType, raw: Any) -> Any:
    """Convert a value so that Python compares it exactly with all values of its type family."""
    t = pa.types
    arrow_type = value_type(arrow_type)
    if raw is None or t.is_integer(arrow_type) or not is_ticks(arrow_type):
        return raw
    if t.is_date32(arrow_type):
        return Fraction(raw * 86_400)
    return Fraction(raw, 1000 if t.is_date64(arrow_type) else UNITS[arrow_type.unit])


def raws_of(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Return a column's values: integers for temporal types, and Python's values for others."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return array.to_pylist()


def with_payloads(array: pa.Array, rng: random.Random) -> pa.Array:
    """Give the NaNs of a float array random signs and payloads."""
    width = array.type.bit_width
    bits = np.frombuffer(array.buffers()[1], f"u{width // 8}", len(array)).copy()
    values = bits.view(f"f{width // 8}")
    for position in np.flatnonzero(np.isnan(values)):
        bits[position] ^= rng.randrange(1 << (width // 4)) | rng.choice([0, 1 << (width - 1)])
    return pa.Array.from_buffers(array.type, len(array), [array.buffers()[0], pa.py_buffer(bits)])


def drawn(arrow_type: pa.DataType, rows: int, rng: random.Random) -> pa.Array:
    """Return random values: few or many distinct, in some order, with or without nulls."""
    plain = value_type(arrow_type)
    if pa.types.is_boolean(plain):
        return pa.array([rng.choice([True, False, None]) for _ in range(rows)])
    distinct = rng.choice([1, 5, 30, 300, rows])
    if plain.bit_width == 8 if is_ticks(plain) else plain == pa.binary(1):
        distinct = min(distinct, 200)
    if pa.types.is_dictionary(arrow_type):
        distinct = min(distinct, 100)
    pool = raw_values(plain, distinct, rng.randrange(1 << 30))
    if getattr(plain, "unit", None) == "s":
        # Polars has no seconds, and statistics overflow when its scan converts them to its units.
        pool = [raw // 1001 for raw in pool]
    if distinct > 5:
        # Only some columns get extreme values.
        pool = pool[rng.choice([0, 0, distinct // 2]) :]
    if pa.types.is_floating(plain):
        pool += rng.choice([[], [], [0.0, -0.0], [float("nan"), -0.0], [float("nan")] * distinct])
    indices = [rng.randrange(len(pool)) for _ in range(rows)]
    order = rng.random()
    if order < 0.2:
        indices.sort()
    elif order < 0.4:
        run = rng.choice([10, 100])
        indices = [indices[row - row % run] for row in range(rows)]
    share = rng.choice([0, 0, 0.1, 0.1, 0.9, 1]) if rng.random() < 0.8 else -1
    values = [None if rng.random() < share else pool[index] for index in indices]
    if share == -1:
        start = rng.randrange(rows)
        values[start : start + rows // 3] = [None] * len(values[start : start + rows // 3])
    array = array_of(arrow_type, values)
    return with_payloads(array, rng) if pa.types.is_floating(arrow_type) else array


# Writers: each writes the columns it can


def with_small_pages(table: pa.Table, path: Path, rng: random.Random, **options: Any) -> None:
    sizes = {
        "row_group_size": rng.choice([60, 250, 700, 1 << 20]),
        "data_page_size": rng.choice([200, 2000, 1 << 20]),
        "max_rows_per_page": rng.choice([20, 100, 20_000]),
        "write_batch_size": rng.choice([10, 64, 1024]),
    }
    by_pyarrow(table, path, rng, **sizes, **options)


def encrypted(
    table: pa.Table, path: Path, rng: random.Random, *, has_filters: bool, **options: Any
) -> None:
    properties = create_encryption_properties(
        KEY,
        encryption_algorithm=rng.choice(["AES_GCM_V1", "AES_GCM_CTR_V1"]),
        plaintext_footer=rng.random() < 0.5,
    )
    # PyArrow writes no filters into encrypted files.
    with_small_pages(table, path, rng, encryption_properties=properties, **options)


def as_ipc(table: pa.Table, path: Path, rng: random.Random, **_: Any) -> None:
    codec = rng.choice(["uncompressed", "lz4", "zstd"])
    pa.feather.write_feather(table, path, compression=codec, chunksize=rng.choice([50, 400]))


Writer = Callable[..., None]
WRITERS: dict[str, Writer] = {
    "pyarrow": with_small_pages,
    "pyarrow, encrypted": encrypted,
    "Polars": by_polars,
    "DuckDB": by_duckdb,
    "DataFusion": by_datafusion,
    "arro3": by_arro3,
    "IPC": as_ipc,
}


def writable(table: pa.Table, writer: Writer, folder: Path, shared: dict[str, Any]) -> pa.Table:
    """Return the columns whose values a writer can write and pyarrow can read back."""
    chosen = []
    keys = create_decryption_properties(KEY) if writer is encrypted else None
    for name in table.column_names:
        path = folder / f"try-{len(chosen)}.parquet"
        # Each writer supports other types, and raises other errors for those it does not.
        with contextlib.suppress(BaseException):
            writer(table.select([name]), path, random.Random(0), **shared)
            rows = None if writer is as_ipc else pq.read_table(path, decryption_properties=keys)
            if rows is None or rows.num_rows == table.num_rows:
                chosen.append(name)
        path.unlink(missing_ok=True)
    return table.select(chosen)


# Datasets


@dataclass
class Column:
    """A column for filters. ``codes`` has the index into ``raws`` of each row, or -1 for null."""

    name: str
    type: pa.DataType
    raws: list[Any]
    codes: np.ndarray
    path: tuple[str, ...]

    @property
    def values(self) -> list[Any]:
        return [exact(self.type, raw) for raw in self.raws]


@dataclass
class Lake:
    """A dataset on disk, and all of it in memory as pyarrow reads it."""

    folder: Path
    writer: str
    layout: str
    is_hive: bool
    whole: pa.Table
    columns: list[Column] = field(default_factory=list)
    indexed: list[str] = field(default_factory=list)

    @property
    def format(self) -> str:
        return "ipc" if self.writer == "IPC" else "parquet"

    @property
    def keys(self) -> zb.ParquetKeys | None:
        return zb.ParquetKeys(KEY) if WRITERS[self.writer] is encrypted else None

    def opened(self, path: Path | str) -> pads.Dataset:
        """Open the files as a PyArrow dataset."""
        way = self.format if self.keys is None else self.keys.format
        return pads.dataset(path, format=way, partitioning="hive")

    def open(self) -> zb.Dataset:
        return zb.dataset(self.folder, format=self.format, parquet_keys=self.keys)

    def __str__(self) -> str:
        return (
            f"{self.writer}, {self.layout}{', hive' if self.is_hive else ''}, "
            f"{self.whole.num_rows} rows, index on {', '.join(self.indexed) or 'nothing'}"
        )


def make_table(rows: int, rng: random.Random, types: Sequence[pa.DataType] = TYPES) -> pa.Table:
    """Return a table of random types. ``row`` numbers its rows, and ``s`` is a struct."""
    kinds = [rng.choice(types) if rng.random() < 0.75 else rng.choice(COMMON) for _ in range(5)]
    arrays = [drawn(kind, rows, rng) for kind in kinds]
    names = list("abcde")
    if rng.random() < 0.5:
        leaves = [drawn(rng.choice(COMMON), rows, rng) for _ in range(2)]
        missing = pa.array([rng.random() < 0.1 for _ in range(rows)])
        arrays.append(pa.StructArray.from_arrays(leaves, ["x", "y"], mask=missing))
        names.append("s")
    if rng.random() < 0.3:
        arrays.append(drawn(pa.bool_(), rows, rng))
        names.append("odd name.b")
    if rng.random() < 0.05:
        extra = [f"w{number}" for number in range(150)]
        arrays += [drawn(rng.choice(COMMON), rows, rng) for _ in extra]
        names += extra
    arrays.append(pa.array(range(rows), pa.int64()))
    return pa.table(arrays, [*names, "row"])


def columns_of(whole: pa.Table) -> list[Column]:
    """Return the columns of a table, with the leaves of structs as columns of their own."""
    columns = []
    for arrow_field in whole.schema:
        column = whole[arrow_field.name].combine_chunks()
        leaves: Sequence[tuple[tuple[str, ...], pa.Array]] = [((arrow_field.name,), column)]
        if pa.types.is_struct(arrow_field.type):
            if isinstance(column, pa.ChunkedArray):
                column = column.chunk(0)
            leaves = [
                ((arrow_field.name, inner.name), pa.compute.struct_field(column, [inner.name]))
                for inner in arrow_field.type
            ]
        for path, values in leaves:
            if pa.types.is_nested(values.type):
                continue
            raws = raws_of(values)
            # Compare by repr, so that NaN equals NaN, and 0.0 differs from -0.0.
            indices: dict[str, int] = {}
            codes = [
                -1 if raw is None else indices.setdefault(repr(raw), len(indices)) for raw in raws
            ]
            first = {code: raw for code, raw in zip(reversed(codes), reversed(raws), strict=True)}
            distinct = [first[code] for code in range(len(indices))]
            name = ".".join(path)
            columns.append(
                Column(name, values.type, distinct, np.array(codes, dtype=np.int64), path)
            )
    return columns


def make_lake(
    folder: Path, rng: random.Random, types: Sequence[pa.DataType] = TYPES
) -> Lake | None:
    """Write a random dataset. Return None if PyArrow cannot read it."""
    folder.mkdir(parents=True)
    name = rng.choice(["pyarrow", "pyarrow", *WRITERS])
    writer = WRITERS[name]
    layout = rng.choice(LAYOUTS)
    is_hive = rng.random() < 0.2
    table = make_table(rng.choice([150, 600, 1500]), rng, types)
    # All files of a dataset share these options, because the types depend on them.
    shared = {
        "has_filters": layout == "embedded" or rng.random() < 0.1,
        "version": rng.choice(["1.0", "2.4", "2.6", "2.6"]),
        "store_schema": rng.random() < 0.8,
    }
    scratch = folder.with_name(folder.name + "-scratch")
    scratch.mkdir()
    table = writable(table, writer, scratch, shared)
    shutil.rmtree(scratch)
    files = rng.randint(1, 4)
    lake = Lake(folder, name, layout, is_hive, table)
    # Later files may lack columns, or have them in another order. Spark reads one schema.
    is_uneven = types is TYPES and name in ("pyarrow", "IPC") and rng.random() < 0.4

    def write(number: int, order: str = "as drawn") -> None:
        rows = table.num_rows // files
        part = table.slice(number * rows, rows if number < files - 1 else None)
        if order == "reversed":
            part = gather(part, np.arange(part.num_rows)[::-1])
        if is_uneven and number:
            kept = [name for name in part.column_names if name == "row" or rng.random() < 0.9]
            part = part.select(rng.sample(kept, len(kept)))
        below = folder / (f"p={number % 2}/q=x%20{number}" if is_hive else "")
        below.mkdir(parents=True, exist_ok=True)
        writer(part, below / f"{number}.{lake.format}", rng, **shared)

    late = files - 1 if layout == "partly covered" and files > 1 else files
    for number in range(late):
        write(number, "reversed" if layout == "stale" and number == 0 else "as drawn")
    if layout not in ("none", "embedded"):
        try:
            # A build refuses files that PyArrow cannot read, although PyArrow wrote them.
            lake.opened(folder).to_table()
        except OSError:
            return None
        index(lake, rng)
    for number in range(late, files):
        write(number)
    if layout == "stale":
        write(0)
    try:
        lake.whole = lake.opened(folder).to_table()
    except OSError:
        return None
    lake.columns = columns_of(lake.whole)
    return lake


def index(lake: Lake, rng: random.Random) -> None:
    """Index some columns, with random parameters."""
    ds = lake.open()
    names = [column.name for column in columns_of(ds.schema.empty_table())]
    wanted = rng.sample(names, rng.randint(1, min(8, len(names))))
    options = {
        "number_of_items": rng.choice([16, 50, 64, 256]),
        "probability": rng.choice([0.2, 0.01, 0.00057]),
        "fold": lake.layout == "folded",
        "global_filter": rng.random() < 0.2,
        "plaintext": True,
        "spark": False,
    }
    for name in wanted:
        kinds = rng.choice([("BLOOMFILTER",), ("HASH",), ("HASH", "BLOOMFILTER")])
        try:
            for kind in kinds:
                index_name = None if kind == kinds[0] else f"{name} {kind}"
                ds.create_scalar_index(name, kind, index_name, **options)
        except (zb.errors.UnsupportedType, zb.errors.InvalidArgument):
            # Booleans and partition columns have no index.
            continue
        lake.indexed.append(name)
