"""Write tables as Parquet files with random options of pyarrow and of other writers."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

CODECS = ["uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4"]
RUST_CODECS = ["uncompressed", "snappy", "gzip(6)", "brotli(3)", "zstd(3)", "lz4_raw"]
# The encodings of pyarrow and arro3 by physical type.
ENCODINGS = {
    "INT32": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
    "INT64": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
    "FLOAT": ["PLAIN", "BYTE_STREAM_SPLIT"],
    "DOUBLE": ["PLAIN", "BYTE_STREAM_SPLIT"],
    "BOOLEAN": ["PLAIN", "RLE"],
    "BYTE_ARRAY": ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"],
    "FIXED_LEN_BYTE_ARRAY": ["PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"],
}


def random_encodings(table: pa.Table, rng: random.Random, **options: Any) -> dict[str, str]:
    """Return encodings for some leaves of a table, by their paths."""
    sink = io.BytesIO()
    pq.write_table(table.slice(0, 0), sink, **options)
    schema = pq.ParquetFile(sink).schema
    # pyarrow reads Arrow dictionaries only from pages with dictionary or PLAIN encoding.
    dictionaries = tuple(
        name for name in table.column_names if "dictionary" in str(table.schema.field(name).type)
    )
    encodings = {}
    for column in map(schema.column, range(len(schema))):
        choices = ENCODINGS.get(column.physical_type, [])
        if choices and rng.random() < 0.6 and not column.path.startswith(dictionaries or "\0"):
            encodings[column.path] = rng.choice(choices)
    return encodings


def by_pyarrow(
    table: pa.Table, path: Any, rng: random.Random, *, has_filters: bool = False, **fixed: Any
) -> None:
    """Write with random options, except those that are given."""
    options: dict[str, Any] = {
        "compression": rng.choice(["none", *CODECS[1:]]),
        "data_page_version": rng.choice(["1.0", "2.0"]),
        # With smaller pages, pyarrow loses rows of its own files.
        "data_page_size": rng.choice([256, 4096, 1 << 20]),
        "max_rows_per_page": rng.choice([100, 1000]),
        "write_batch_size": rng.choice([7, 50, 1000]),
        "row_group_size": rng.choice([300, 1000]),
        "use_dictionary": rng.random() < 0.5,
        "dictionary_pagesize_limit": rng.choice([64, 1000, 1 << 20]),
        "write_page_index": rng.random() < 0.6,
        "write_statistics": rng.random() < 0.8,
        "write_page_checksum": rng.random() < 0.2,
        "store_schema": rng.random() < 0.8,
        "store_decimal_as_integer": rng.random() < 0.4,
        "use_compliant_nested_type": rng.random() < 0.8,
        **fixed,
    }
    if not options["use_dictionary"]:
        # The file that tells the leaves is not encrypted, so that it can be read.
        plain = {name: options[name] for name in options if name != "encryption_properties"}
        options["column_encoding"] = random_encodings(table, rng, **plain) or None
    if has_filters:
        flat = [field for field in table.schema if not pa.types.is_nested(field.type)]
        options["bloom_filter_options"] = {
            field.name: {"ndv": rng.choice([10, 100, 1000]), "fpp": rng.choice([0.05, 0.001])}
            for field in rng.sample(flat, rng.randint(1, len(flat)))
            if not pa.types.is_boolean(field.type)
        }
    pq.write_table(table, path, **options)


def by_polars(table: pa.Table, path: Path, rng: random.Random, **_: Any) -> None:
    import polars as pl

    pl.DataFrame(table).write_parquet(
        path,
        compression=rng.choice(CODECS),
        row_group_size=rng.choice([100, 500, None]),
        data_page_size=rng.choice([256, 4096, None]),
        statistics=rng.random() < 0.8,
    )


def by_duckdb(table: pa.Table, path: Path, rng: random.Random, **_: Any) -> None:
    import duckdb

    options = f"codec {rng.choice([*CODECS, 'lz4_raw'])}, row_group_size 2048"
    options += f", parquet_version {rng.choice(['V1', 'V2'])}"
    if rng.random() < 0.3:
        options += ", dictionary_size_limit 1"
    with duckdb.connect() as connection:
        connection.register("given", table)
        connection.execute(f"COPY given TO '{path}' (FORMAT parquet, {options})")


def by_datafusion(
    table: pa.Table, path: Path, rng: random.Random, *, has_filters: bool = False, **_: Any
) -> None:
    import datafusion

    options = datafusion.ParquetWriterOptions(
        compression=rng.choice(RUST_CODECS),
        writer_version=rng.choice(["1.0", "2.0"]),
        dictionary_enabled=rng.random() < 0.5,
        dictionary_page_size_limit=rng.choice([64, 1 << 20]),
        data_page_row_count_limit=rng.choice([50, 1000]),
        write_batch_size=rng.choice([10, 100]),
        max_row_group_size=rng.choice([200, 1000]),
        bloom_filter_on_write=has_filters,
    )
    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(1))
    context.from_arrow(table).write_parquet_with_options(str(path), options)


def by_arro3(
    table: pa.Table, path: Path, rng: random.Random, *, has_filters: bool = False, **_: Any
) -> None:
    import arro3.io

    # arro3 stores short decimals as integers, unlike pyarrow.
    flat = [field.name for field in table.schema if not pa.types.is_decimal(field.type)]
    encodings = {
        name: encoding for name, encoding in random_encodings(table, rng).items() if name in flat
    }
    arro3.io.write_parquet(
        table,
        str(path),
        compression=rng.choice(RUST_CODECS),
        writer_version=rng.choice(["parquet_1_0", "parquet_2_0"]),
        column_dictionary_enabled=dict.fromkeys(encodings, False),
        column_encoding=encodings,
        dictionary_page_size_limit=rng.choice([64, 1 << 20]),
        data_page_row_count_limit=rng.choice([50, 1000]),
        write_batch_size=rng.choice([10, 100]),
        max_row_group_size=rng.choice([200, 1000]),
        bloom_filter_enabled=has_filters,
    )
