"""``python -m bench headline`` measures the lookups of README's table.

The data are 8 million UUIDs as text, with two other columns, in 40 Parquet files with the default
options of pyarrow. Each lookup returns all columns of the rows that hold the keys, as an Arrow
table. The first lookup is that of a new process after its imports, and includes opening the files,
which are not in the page cache. For the others, the competitors take turns, and the median counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.cold import first_lookup
from bench.competitors import Competitor, DuckDB, LanceBloom, Polars, PyArrow, ZoneBloom
from bench.data import DataSet, sorted_ids, uuids
from bench.measures import WrongAnswer
from bench.sections import write_section

SECTION = "headline"
COMPETITORS: tuple[type[Competitor], ...] = (ZoneBloom, DuckDB, Polars, PyArrow, LanceBloom)
_HEADINGS = ("zonebloom", "DuckDB", "Polars", "pyarrow", "Lance, data rewritten")
_FILES = 40
_FIRST_LOOKUPS = 3
# The name of a lookup, whether its keys are in the data, their number, and the number of turns.
LOOKUPS = (
    ("one key", True, 1, 15),
    ("a key that does not exist", False, 1, 15),
    ("100 keys", True, 100, 5),
    ("10,000 keys", True, 10_000, 3),
)


def write_data(rows: int, root: Path) -> DataSet:
    """Write the files if they do not exist yet, and return the data set."""

    def write(folder: Path) -> None:
        random = np.random.default_rng(8)
        for number, file_rows in enumerate(np.array_split(np.arange(rows), _FILES)):
            table = pa.table(
                {
                    "key": uuids(random, len(file_rows)),
                    "row": file_rows,
                    "x": random.random(len(file_rows)),
                }
            )
            pq.write_table(table, folder / f"part-{number:02}.parquet")

    folder = root / f"headline-{rows}"
    name = f"{rows:,} UUIDs in {_FILES} files"
    return DataSet(name, folder, "key", ("row",), "pyarrow", "pyarrow").write_if_missing(write)


def measure(data: DataSet, progress: Callable[[str], None]) -> dict[str, list[float]]:
    """Return the seconds of each competitor, by the name of the lookup."""
    seconds: dict[str, list[float]] = {}
    competitors = [competitor(data) for competitor in COMPETITORS]
    for competitor in competitors:
        built = competitor.build()
        if built.seconds is not None:
            size = f"{built.index_bytes / 1e6:.1f} MB"
            progress(f"{competitor.name} built an index of {size} in {built.seconds:.1f} s")
    keys = data.present_keys(_FIRST_LOOKUPS, seed=5)
    seconds["one key, first lookup of a process"] = [
        statistics.median(first_lookup(data.folder, competitor.name, key).seconds for key in keys)
        for competitor in competitors
    ]
    for competitor in competitors:
        competitor.open()
        competitor.warm()
    for name, is_present, count, turns in LOOKUPS:
        choose = data.present_keys if is_present else data.absent_keys
        keys = choose(count * (turns + 1), seed=turns)
        lookups = [keys[start : start + count] for start in range(0, len(keys), count)]
        _check(competitors, data, lookups[0])
        seconds[name] = _median_seconds(competitors, lookups[1:])
        progress(name)
    return seconds


def _check(competitors: Sequence[Competitor], data: DataSet, keys: list) -> None:
    expected = data.expected_ids(keys)
    for competitor in competitors:
        if not sorted_ids(competitor.lookup(keys), data.row_id).equals(expected):
            raise WrongAnswer(f"{competitor.name} found other rows than brute force")


def _median_seconds(competitors: Sequence[Competitor], lookups: list[list]) -> list[float]:
    seconds: list[list[float]] = [[] for _ in competitors]
    for keys in lookups:
        for times, competitor in zip(seconds, competitors, strict=True):
            start = time.perf_counter()
            competitor.lookup(keys)
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in seconds]


def table(seconds: dict[str, list[float]]) -> list[str]:
    """Return a table in Markdown, in milliseconds."""
    lines = [f"| milliseconds | {' | '.join(_HEADINGS)} |", f"|---|{'---:|' * len(_HEADINGS)}"]
    for name, times in seconds.items():
        lines.append(f"| {name} | {' | '.join(_milliseconds(time) for time in times)} |")
    return lines


def _milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def write_readme(seconds: dict[str, list[float]], readme: Path) -> None:
    """Write the table between its markers in the README.

    Raises
    ------
    ValueError
        If the README has no markers.
    """
    write_section(readme, SECTION, "\n".join(table(seconds)) + "\n")
