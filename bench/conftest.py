"""Fixtures of the bench. Every measurement is compared with a peer or a floor of the same run.

Run ``pytest bench``. ``--rows`` sets the size of the data (20 million by default), which is
written once per size to the temporary folder of the system. A Markdown table of ratios ends the
output.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from bench.data import DATA_FOLDER, uuids
from bench.sections import BENCHMARKS, write_section
from bench.spark_session import spark_session
from bench.tables import time_text

_FILES = 4
_ROW_GROUP_ROWS = 1_000_000
_RESULTS: list[tuple[str, str, float, float]] = []
# Sentences below the table, for example about bytes that were read or shuffled.
NOTES: list[str] = []
# The options that the README recommends. Only "y" has repeated values, so only it has a dictionary.
PAGED = {
    "write_page_index": True,
    "max_rows_per_page": 2048,
    "use_dictionary": ["y"],
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rows", type=int, default=20_000_000, help="rows of the data set")
    parser.addoption("--write", action="store_true", help="write the table into bench/REPORT.md")


def pytest_configure(config: pytest.Config) -> None:
    # Both kinds are measured at 20 million rows, where a build advises the other one.
    config.addinivalue_line("filterwarnings", "ignore:.*build it with index_type=.HASH.")


@pytest.fixture(scope="session")
def lake(request: pytest.FixtureRequest) -> Path:
    """Write four Parquet files: random int64 id, 36-byte uuid string, float64, int64."""
    rows = request.config.getoption("--rows")
    folder = DATA_FOLDER / f"lake-{rows}"
    marker = folder / "_done"
    if not marker.exists():
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(1)
        for number in range(_FILES):
            pq.write_table(
                _rows(random, rows // _FILES),
                folder / f"part-{number}.parquet",
                row_group_size=_ROW_GROUP_ROWS,
                write_page_index=True,
            )
        marker.touch()
    return folder


@pytest.fixture(scope="session")
def lake16(lake: Path) -> Path:
    """Write the same rows as sixteen files."""
    folder = lake.with_name(f"{lake.name}-16")
    if not (folder / "_done").exists():
        folder.mkdir(exist_ok=True)
        dataset = pads.dataset(lake, format="parquet")
        rows = dataset.count_rows() // 16
        batches = dataset.to_batches(batch_size=rows, use_threads=False)
        table = pa.Table.from_batches(batches)
        for number in range(16):
            pq.write_table(
                table.slice(number * rows, rows), folder / f"part-{number:02d}.parquet", **PAGED
            )
        (folder / "_done").touch()
    return folder


@pytest.fixture(scope="session")
def spark():
    """Return a warm Spark session with two cores."""
    session = spark_session("local[2]", "zonebloom-bench")
    session.range(10).mapInArrow(lambda batches: batches, "id bigint").count()
    yield session
    session.stop()


def _rows(random: np.random.Generator, count: int) -> pa.Table:
    return pa.table(
        {
            "id": random.integers(-(2**63), 2**63 - 1, count),
            "uuid": uuids(random, count),
            "x": random.random(count),
            "y": random.integers(0, 1000, count),
        }
    )


@pytest.fixture(scope="session")
def paged(lake: Path) -> Path:
    """Write the same rows with the options that the README recommends."""
    folder = lake.with_name(f"{lake.name}-paged")
    if not (folder / "_done").exists():
        folder.mkdir(exist_ok=True)
        for path in sorted(lake.glob("*.parquet")):
            table = pq.read_table(path)
            pq.write_table(table, folder / path.name, row_group_size=_ROW_GROUP_ROWS, **PAGED)
        (folder / "_done").touch()
    return folder


@pytest.fixture(scope="session")
def indexed(paged: Path):
    dataset = zb.dataset(paged)
    dataset.create_scalar_index("id", spark=False)
    yield dataset
    shutil.rmtree(dataset.index_dir)


@pytest.fixture(scope="session")
def keys(paged: Path) -> list[int]:
    """Return keys from every file. They are the same in each run."""
    random = np.random.default_rng(5)
    keys = []
    for path in sorted(paged.glob("*.parquet")):
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            ids = file.read_row_group(group, ["id"])["id"]
            keys += ids.take(pa.array(random.integers(0, len(ids), 25))).to_pylist()
    return keys


@pytest.fixture
def versus(benchmark, request: pytest.FixtureRequest):
    """Measure zonebloom with pytest-benchmark, and each peer just before it. Keep the ratios.

    With ``in_turn`` the peers run before each round, for measurements where small differences
    count: if the machine slows down, it then slows down all of them.
    """

    def run(
        ours: Callable[[], object],
        peers: dict[str, Callable[[], object]],
        *,
        rounds: int = 5,
        in_turn: bool = False,
    ):
        peer_seconds: dict[str, list[float]] = {name: [] for name in peers}

        def run_peers() -> None:
            for name, peer in peers.items():
                peer_seconds[name].append(_seconds(peer))

        for work in (ours, *peers.values()):
            work()
        for _ in range(0 if in_turn else rounds):
            run_peers()
        setup = run_peers if in_turn else None
        benchmark.pedantic(ours, setup=setup, rounds=rounds, iterations=1)
        our_median = benchmark.stats.stats.median
        for name, seconds in peer_seconds.items():
            median = statistics.median(seconds)
            benchmark.extra_info[f"times {name}"] = our_median / median
            _RESULTS.append((request.node.name, name, our_median, median))

    return run


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    if not _RESULTS:
        for note in NOTES:
            terminalreporter.write_line(note)
        return
    lines = [
        "| measurement | against | ours | theirs | ours / theirs |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for name, peer, ours, theirs in _RESULTS:
        label = name.removeprefix("test_").replace("_", " ")
        ratio = f"{ours / theirs:.2g}"
        lines.append(f"| {label} | {peer} | {time_text(ours)} | {time_text(theirs)} | {ratio} |")
    lines += [f"\n{note}" for note in NOTES]
    terminalreporter.write_line("\n" + "\n".join(lines))
    if config.getoption("--write"):
        path = config.rootpath / "bench" / "REPORT.md"
        write_section(path, BENCHMARKS, "\n".join(lines) + "\n")
