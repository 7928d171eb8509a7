"""The demo: orders in Parquet files, as people write them, and questions to them by key.

Each question is timed in the engines that are installed and in PyArrow's scan. All must find the
same orders.
"""

from __future__ import annotations

import datetime
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.base.arrays import array_of
from zonebloom.errors import InvalidArgument
from zonebloom.facade.dataset import Dataset
from zonebloom.scan.plan import ScanStats

NUM_FILES = 8
FILE_ROWS = 250_000
_NUM_CUSTOMERS = 500_000
_STATUSES = ["delivered", "shipped", "returned", "lost"]
_STATUS_SHARES = [0.9, 0.06, 0.03, 0.01]
_FIRST_ORDER = datetime.datetime(2026, 1, 1)
_SECONDS_BETWEEN_ORDERS = 4
# A question is explained if zonebloom is fewer times quicker than the quickest scan.
_CLEAR_GAIN = 5
_PAGES = (
    "each order lies in a page of 20,000 others, which is decoded whole; pages of 2,048 rows "
    "would be read several times as fast"
)
# The demo deletes a folder of an earlier run only if it contains this file.
_MARK = ".made-by-zonebloom-demo"


def write_orders(folder: str) -> list[str]:
    """Write orders to Parquet files, with the default options of PyArrow. Return some order ids."""
    import pyarrow.parquet as pq

    if os.path.isdir(folder) and os.listdir(folder):
        if not os.path.exists(os.path.join(folder, _MARK)):
            raise InvalidArgument(f"{folder} holds other files; give another folder by --path")
        shutil.rmtree(folder)
    os.makedirs(folder, exist_ok=True)
    Path(folder, _MARK).touch()
    ids: list[str] = []
    for number in range(NUM_FILES):
        orders = make_orders(number, FILE_ROWS)
        pq.write_table(orders, os.path.join(folder, f"orders-{number}.parquet"))
        ids += orders["order_id"].take(np.linspace(0, FILE_ROWS - 1, 13, dtype=int)).to_pylist()
    return ids


def make_orders(file_number: int, num_rows: int) -> pa.Table:
    """Return the orders of one file: sorted by time, with ids and customers in no order."""
    rng = np.random.default_rng(file_number)
    first = np.datetime64(_FIRST_ORDER, "us")
    seconds = (np.arange(num_rows) + file_number * num_rows) * _SECONDS_BETWEEN_ORDERS
    statuses = rng.choice(len(_STATUSES), num_rows, p=_STATUS_SHARES)
    return pa.table(
        {
            "order_id": _random_uuids(rng, num_rows),
            "customer": rng.integers(0, _NUM_CUSTOMERS, num_rows),
            "ordered_at": first + seconds.astype("timedelta64[s]"),
            "amount": rng.integers(100, 100_000, num_rows) / 100,
            "status": array_of(_STATUSES, pa.string()).take(pa.array(statuses)),
        }
    )


def _random_uuids(rng: np.random.Generator, count: int) -> pa.Array:
    """Return random UUIDs as text."""
    digits = np.frombuffer(rng.bytes(16 * count).hex().encode(), np.uint8).reshape(count, 32)
    text = np.full((count, 36), ord("-"), np.uint8)
    first = 0
    for start, stop in ((0, 8), (9, 13), (14, 18), (19, 23), (24, 36)):
        text[:, start:stop] = digits[:, first : first + stop - start]
        first += stop - start
    offsets = np.arange(0, text.size + 1, 36, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


@dataclass(frozen=True, slots=True)
class Question:
    """A question in words, and filters that ask it for different keys.

    All but the first are timed, so that no engine finds an answer in a cache, and the least time
    counts. ``explanation`` says why an index helps little, if it does.
    """

    words: str
    filters: tuple[str, ...]
    explanation: str = _PAGES


def questions(ids: list[str]) -> list[Question]:
    """Return the questions to a table of orders that contains some ids."""

    def id_in(*some_ids: str) -> str:
        return f"order_id IN ({', '.join(map(repr, some_ids))})"

    def hour(number: int) -> str:
        start = _FIRST_ORDER + datetime.timedelta(days=3, hours=number)
        stop = start + datetime.timedelta(hours=1)
        return f"ordered_at >= TIMESTAMP '{start}' AND ordered_at < TIMESTAMP '{stop}'"

    return [
        Question("one order", (id_in(ids[0]), id_in(ids[15]), id_in(ids[29]))),
        Question(
            "an order that does not exist",
            (id_in("00000000-0000-4000-8000-000000000000"), id_in(ids[1][:-12] + "0" * 12)),
            "only blocks of the index are read, so other programs of the machine took the time",
        ),
        Question("ten orders", (id_in(*ids[2:12]), id_in(*ids[5::10]))),
        Question(
            "the orders of a customer", ("customer = 4242", "customer = 1718", "customer = 99")
        ),
        Question(
            "the returns of a customer",
            (
                "customer = 4242 AND status = 'returned'",
                "customer = 777 AND status = 'returned'",
                "customer = 8642 AND status = 'returned'",
            ),
        ),
        Question(
            "the orders of an hour",
            (hour(1), hour(2)),
            "the files are sorted by time, so each engine skips most of them by their minima and "
            "maxima, and needs no index",
        ),
        Question(
            "all lost orders",
            ("status = 'lost'",),
            "one order in a hundred is lost, so every zone has some, and all are read; an index is "
            "for rare values",
        ),
    ]


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """The answer to a question: the seconds of each engine, and if all found the same orders."""

    question: str
    filter: str
    num_rows: int
    read_bytes: int
    seconds: dict[str, float]
    is_same: bool
    explanation: str

    @property
    def gain(self) -> float:
        return _gain(self.seconds)


def ask(ds: Dataset, folder: str, question: Question) -> DemoAnswer:
    """Time a question in all engines that are installed, and compare the orders they find."""
    runs: list[ScanStats] = []
    engines = {
        "zonebloom": lambda sql: ds.to_table(filter=sql, scan_stats_callback=runs.append),
        **dict(_scans(folder)),
    }
    seconds: dict[str, float] = {}
    # The ids of the orders that each engine found by each filter.
    found: list[list[list[str]]] = []
    for name, scan in engines.items():
        times: list[float] = []
        found.append([])
        for sql in question.filters:
            start = time.perf_counter()
            rows = scan(sql)
            times.append(time.perf_counter() - start)
            found[-1].append(sorted(rows["order_id"].to_numpy().tolist()))
        seconds[name] = min(times[1:] or times)
    return DemoAnswer(
        question.words,
        question.filters[-1],
        len(found[0][-1]),
        runs[-1].data_bytes + runs[-1].index_bytes,
        seconds,
        all(ids == found[0] for ids in found),
        "" if _gain(seconds) >= _CLEAR_GAIN else question.explanation,
    )


def _gain(seconds: dict[str, float]) -> float:
    """Return how many times quicker zonebloom, the first engine, is than the quickest scan."""
    first, *others = seconds.values()
    return min(others) / first


def _scans(folder: str) -> Iterator[tuple[str, Callable[[str], Any]]]:
    """Yield the names of engines, with functions from a filter in SQL to the rows of a scan."""
    files = os.path.join(folder, "*.parquet")
    if find_spec("duckdb") is not None:
        import duckdb

        connection = duckdb.connect()
        path = files.replace("'", "''")
        yield (
            "DuckDB",
            lambda sql: connection.sql(f"FROM '{path}' WHERE {sql}").arrow().read_all(),
        )
    if find_spec("polars") is not None:
        import polars as pl

        yield "Polars", lambda sql: pl.scan_parquet(files).filter(pl.sql_expr(sql)).collect()
    import pyarrow.dataset as pads

    from zonebloom.predicates import translate_filter

    plain = pads.dataset(folder)
    yield "PyArrow", lambda sql: plain.to_table(filter=translate_filter(sql, plain.schema)[0])


def change_orders(ds: Dataset, ids: list[str]) -> list[Any]:
    """Update an order and insert one, then erase a customer. Return the receipts."""
    extra_order = make_orders(NUM_FILES, num_rows=1)
    old_order = ds.lookup("order_id", ids[20:21]).select(extra_order.column_names)
    changed_order = old_order.set_column(4, "status", array_of(["returned"], pa.string()))
    receipt = ds.upsert(pa.concat_tables([changed_order, extra_order]), on="order_id")
    return [receipt, ds.erase("customer", old_order["customer"])]


def next_commands(folder: str, ids: list[str]) -> list[str]:
    """Return commands to try on the data of a demo."""
    path = shlex.quote(folder)
    return [
        f"zonebloom lookup {path} --key order_id={ids[40]}",
        f"""zonebloom explain {path} "order_id = '{ids[40]}'" --analyze""",
        f"zonebloom advise {path}",
    ]
