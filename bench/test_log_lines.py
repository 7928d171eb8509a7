"""Find log lines by time, element and word, compared with DuckDB's scan of the same files.

The files are one a day, recommended layout: Zstandard, pages of 2,048 rows, no dictionaries.
"""

from __future__ import annotations

import datetime
import itertools
import shutil
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from bench.conftest import NOTES
from bench.data import DATA_FOLDER
from zonebloom.base.text import bytes_text

_DAYS = 20
_START = np.datetime64("2026-01-01")
_RARE = "kernelpanic"
# The index of each kind: its column, its kind, and further options.
_INDICES = {
    "ts_idx": ("ts", "ZONEMAP", {}),
    "user_idx": ("user", "HASH", {}),
    "tags_idx": ("tags[]", "HASH", {}),
    "message_words_idx": ("message", "HASH", {"tokens": "words", "lower": True}),
    "message_trigrams_idx": ("message", "BLOOMFILTER", {"tokens": "trigrams"}),
}


# Lance's index of each column for the same questions.
_LANCE_INDICES = {"ts": "ZONEMAP", "tags": "LABEL_LIST", "message": "NGRAM"}


def _day(number: int, rows: int) -> pa.Table:
    random = np.random.default_rng(number)

    def some(prefix: str, count: int) -> pa.Array:
        return pa.array(np.char.add(prefix, random.integers(0, count, rows).astype(str)))

    step = np.timedelta64(86_400_000_000 // rows, "us")
    tags = [np.array(some("host-", 2000)), np.array(some("req-", 500_000))]
    words = [
        pa.array(np.array(["INFO", "WARN", "ERROR", "DEBUG"])[random.integers(0, 4, rows)]),
        some("svc-", 40),
        pa.array(np.array(["GET", "POST", "PUT"])[random.integers(0, 3, rows)]),
        some("/api/item/", 100_000),
        some("took ", 5000),
        pa.array(np.where(random.random(rows) < 2e-7, _RARE, "ok")),
    ]
    return pa.table(
        {
            "ts": pa.array(_START + np.timedelta64(number, "D") + np.arange(rows) * step),
            "user": random.integers(0, 1_000_000, rows),
            "tags": pa.ListArray.from_arrays(
                pa.array(np.arange(0, 2 * rows + 1, 2), pa.int32()),
                pa.array(np.stack(tags, axis=1).ravel()),
            ),
            "message": pc.binary_join_element_wise(*words, " "),  # pyright: ignore
        }
    )


@pytest.fixture(scope="module")
def log_lake(request: pytest.FixtureRequest) -> Path:
    rows = request.config.getoption("--rows")
    folder = DATA_FOLDER / f"log-{rows}" / "log"
    if not (folder / "_done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(_DAYS):
            pq.write_table(
                _day(number, rows // _DAYS),
                folder / f"day-{number:02d}.parquet",
                row_group_size=1 << 17,
                write_page_index=True,
                max_rows_per_page=2048,
                use_dictionary=False,
                compression="zstd",
            )
        (folder / "_done").touch()
    return folder


@pytest.fixture(scope="module")
def log(log_lake: Path):
    """Return the log with all indices. Note what each costs."""
    first_day = zb.dataset(sorted(log_lake.glob("*.parquet"))[0])
    for column, kind, options in _INDICES.values():
        # Load the kernels of the build.
        first_day.create_scalar_index(column, kind, spark=False, **options)
    shutil.rmtree(first_day.index_dir)
    ds = zb.dataset(log_lake)
    data_bytes = sum(path.stat().st_size for path in log_lake.glob("*.parquet"))
    for name, (column, kind, options) in _INDICES.items():
        seconds = []
        for action in (
            lambda column=column, kind=kind, options=options: ds.create_scalar_index(
                column, kind, spark=False, **options
            ),
            lambda column=column: _read(log_lake, column.removesuffix("[]")),
        ):
            start = time.perf_counter()
            action()
            seconds.append(time.perf_counter() - start)
        (index,) = (index for index in ds.describe_indices() if index.name == name)
        NOTES.append(
            f"{name} ({kind}): {bytes_text(index.num_bytes)}, "
            f"{index.num_bytes / data_bytes:.2%} of the files; the build took {seconds[0]:.1f} s, "
            f"{seconds[0] / seconds[1]:.1f} times reading the column."
        )
    _note_lance(log_lake)
    yield ds
    shutil.rmtree(ds.index_dir)


def _note_lance(log_lake: Path) -> None:
    """Note what Lance's indices of the same rows take. Lance first copies the rows."""
    import lance

    folder = log_lake.parent / "lance"
    files = sorted(log_lake.glob("*.parquet"))
    batches = (batch for file in files for batch in pq.ParquetFile(file).iter_batches())
    dataset = lance.write_dataset(batches, folder, schema=pq.read_schema(files[0]))
    copy_bytes = _bytes_in(folder)
    for column, kind in _LANCE_INDICES.items():
        before, start = _bytes_in(folder), time.perf_counter()
        dataset.create_scalar_index(column, kind)
        seconds, size = time.perf_counter() - start, _bytes_in(folder) - before
        NOTES.append(
            f"Lance {kind} of {column}: {bytes_text(size)}, {size / copy_bytes:.2%} of its copy of "
            f"the rows; the build took {seconds:.1f} s."
        )
    shutil.rmtree(folder)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _read(folder: Path, column: str) -> None:
    for path in sorted(folder.glob("*.parquet")):
        pq.read_table(path, columns=[column])


def _key_and_hour(log: zb.Dataset) -> tuple[str, str]:
    """Return the conditions for a key of the middle of the log, and for the hour of one row."""
    row = log.take([log.count_rows() // 2], ["user", "ts"]).to_pylist()[0]
    end = row["ts"] + datetime.timedelta(hours=1)
    return f"user = {row['user']}", f"ts BETWEEN '{row['ts']}' AND '{end}'"


def test_key_within_an_hour(log, versus):
    key, hour = _key_and_hour(log)
    versus(
        lambda: log.to_table(filter=f"{key} AND {hour}"),
        {"the key alone": lambda: log.to_table(filter=key)},
        rounds=50,
    )


@pytest.mark.parametrize("condition", [f"contains_token(message, '{_RARE}')", "LIKE"])
def test_rare_word(log, log_lake, versus, condition):
    like = f"message LIKE '%{_RARE}%'"
    ours = like if condition == "LIKE" else condition
    files = f"read_parquet('{log_lake}/*.parquet')"
    versus(
        lambda: log.to_table(filter=ours),
        {"DuckDB LIKE": lambda: duckdb.sql(f"FROM {files} WHERE {like}").fetchall()},
        rounds=5,
    )


def test_element_of_a_list(log, log_lake, versus):
    numbers = itertools.count(777)
    files = f"read_parquet('{log_lake}/*.parquet')"

    def condition() -> str:
        return f"list_contains(tags, 'req-{next(numbers)}')"

    versus(
        lambda: log.to_table(filter=condition()),
        {
            "DuckDB list_contains": lambda: duckdb.sql(
                f"FROM {files} WHERE {condition()}"
            ).fetchall()
        },
        rounds=5,
    )
