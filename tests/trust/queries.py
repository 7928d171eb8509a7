"""Run random Polars queries over `to_polars()`, and compare them with `pl.scan_parquet`."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from polars.io.plugins import register_io_source
from trust.report import Report

import zonebloom as zb

QUERIES = 40
ENGINES = ("auto", "in-memory", "streaming")
# Panics of Polars derive from BaseException.
REFUSALS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)

Step = Callable[[pl.LazyFrame], pl.LazyFrame]


def run_case(report: Report, number: int, folder: Path, queries: int = QUERIES) -> None:
    """Check one random folder of files with random queries."""
    rng = report.begin(number)
    data = folder / "data"
    data.mkdir()
    _write(data, rng)
    ds = zb.dataset(data)
    for column in rng.sample(["row", "id", "s", "day"], rng.randint(0, 3)):
        ds.create_scalar_index(column, rng.choice(["BLOOMFILTER", "HASH"]), number_of_items=8)
    ours, files = ds.to_polars(), str(data / "*.parquet")
    for _ in range(queries):
        query, engine = draw_query(rng), rng.choice(ENGINES)
        report.tried[engine] += 1
        problem = compare(query, engine, ours, files, folder)
        if problem == "refused":
            report.refused["Polars refuses the query"] += 1
        elif problem:
            report.fail(f"{engine}: {query}: {problem}")


def _write(folder: Path, rng: random.Random) -> None:
    first = 0
    for number in range(rng.randint(1, 4)):
        count = rng.choice([1, 30, 100, 250])
        rows = range(first, first + count)
        first += count
        table = pa.table(
            {
                "row": pa.array(rows, pa.int64()),
                "id": pa.array(
                    [rng.choice([None, 7, 8, row % 40, row]) for row in rows], pa.int64()
                ),
                "v": pa.array([rng.randint(-5, 5) for _ in rows], pa.int32()),
                "s": pa.array(
                    [rng.choice(["", "a", "b", f"s{row % 9}", None]) for row in rows], "str"
                ),
                "day": [dt.date(2024, 1, 1 + row // 10 % 28) for row in rows],
                "li": pa.array([[row % 3] * (row % 4) for row in rows], pa.list_(pa.int64())),
            }
        )
        pq.write_table(
            table, folder / f"{number}.parquet", row_group_size=rng.choice([16, 64, 1000])
        )


class Query:
    """A chain of steps over a frame, and how the result is collected."""

    def __init__(self, steps: list[tuple[str, Step]], output: str):
        self._steps, self._output = steps, output

    def __str__(self) -> str:
        return ", ".join([*(text for text, _ in self._steps), self._output])

    def run(self, frame: pl.LazyFrame, engine: str, folder: Path) -> list[pl.DataFrame]:
        source = frame
        for _, step in self._steps:
            frame = step(frame)
        match self._output:
            case "sink":
                path = folder / "sink.parquet"
                frame.sink_parquet(path, engine=engine)  # pyright: ignore[reportArgumentType]
                return [pl.read_parquet(path)]
            case "collect_all":
                others = [source.filter(pl.col("id") == 7), frame]
                return pl.collect_all(others, engine=engine)  # pyright: ignore[reportArgumentType]
            case "batches":
                empty = pl.DataFrame(schema=frame.collect_schema())
                return [pl.concat([empty, *frame.collect_batches()])]
        return [frame.collect(engine=engine)]  # pyright: ignore[reportArgumentType]


def compare(query: Query, engine: str, ours: pl.LazyFrame, files: str, folder: Path) -> str:
    """Return how our result differs from that of Polars, "" if it does not, or "refused"."""
    try:
        expected = query.run(pl.scan_parquet(files), engine, folder)
    except REFUSALS:
        return "refused"
    try:
        result = query.run(ours, engine, folder)
    except REFUSALS as error:
        result = error
    if _are_equal(result, expected):
        return ""
    # Some queries panic or give other rows over a frame in memory, too, or over any source that is
    # written in Python. That is a defect of Polars.
    frame = pl.read_parquet(files)
    for source in (frame.lazy(), register_io_source(_io_source(frame), schema=frame.schema)):
        try:
            if _are_equal(result, query.run(source, engine, folder)):
                return ""
        except REFUSALS:
            return "refused"
    return f"{result!r:.300} differs from {expected}"


def _io_source(frame: pl.DataFrame) -> Callable[..., Iterator[pl.DataFrame]]:
    def read(
        names: list[str] | None, predicate: pl.Expr | None, num_rows: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        rows = frame if predicate is None else frame.filter(predicate)
        rows = rows if num_rows is None else rows.head(num_rows)
        yield rows if names is None else rows.select(names)

    return read


def _are_equal(result: list[pl.DataFrame] | BaseException, expected: list[pl.DataFrame]) -> bool:
    return isinstance(result, list) and all(
        left.schema == right.schema and left.height == right.height and left.equals(right)
        for left, right in zip(result, expected, strict=True)
    )


def draw_query(rng: random.Random) -> Query:
    steps = [_draw_step(rng) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4]))]
    steps += [_draw_end(rng)]
    return Query(steps, rng.choice(["collect"] * 6 + ["sink", "collect_all", "batches"]))


def _draw_condition(rng: random.Random) -> pl.Expr:
    col = pl.col
    conditions = [
        lambda: col("id") == rng.choice([7, 8, 20, 999]),
        lambda: col("id").is_in([7, rng.randrange(300)]),
        lambda: col("row") == rng.randrange(400),
        lambda: col("row") >= 0,
        lambda: col("row").is_between(20, 60),
        lambda: col("s") == rng.choice(["a", "s3", "none"]),
        lambda: col("s").is_null(),
        lambda: col("day") == dt.date(2024, 1, rng.randint(1, 28)),
        lambda: col("v") > rng.randint(-5, 5),
        lambda: col("s").str.contains("s"),
        lambda: col("li").list.contains(1),
        lambda: col("id") == col("id").max().over("s"),
        lambda: col("row") == col("row").max(),
        lambda: col("id") == col("v"),
        lambda: pl.lit(rng.random() < 0.7),
    ]
    condition = rng.choice(conditions)()
    match rng.randrange(6):
        case 0:
            return condition & rng.choice(conditions)()
        case 1:
            return condition | rng.choice(conditions)()
        case 2:
            return ~condition
    return condition


def _draw_step(rng: random.Random) -> tuple[str, Step]:
    """Return a step that keeps the columns of the files."""
    condition, key = _draw_condition(rng), rng.choice(["id", "s", "row"])
    first, count = rng.randrange(-50, 200), rng.randrange(120)
    name = f"new{rng.randrange(1 << 30)}"
    keys = pl.LazyFrame({"row": [5, 20, 20, 9999], name: [1, 2, 3, 4]})
    how = rng.choice(["inner", "left", "semi", "anti"])
    steps: list[tuple[str, Step]] = [
        (f"filter {condition}", lambda f: f.filter(condition)),
        (f"filter {condition}", lambda f: f.filter(condition)),
        (f"filter {condition}", lambda f: f.filter(condition)),
        ("with_row_index", lambda f: f.with_row_index(name)),
        (f"slice {first} {count}", lambda f: f.slice(first, count)),
        (f"head {count}", lambda f: f.head(count)),
        (f"tail {count}", lambda f: f.tail(count)),
        (f"sort {key}", lambda f: f.sort(key, "row", maintain_order=True)),
        (f"unique {key}", lambda f: f.unique(key, keep="first", maintain_order=True)),
        (f"over {key}", lambda f: f.with_columns(pl.col("v").sum().over(key).alias(name))),
        ("shift", lambda f: f.with_columns(pl.col("v").shift(1).alias(name))),
        ("reverse", lambda f: f.reverse()),
        ("gather_every", lambda f: f.gather_every(3)),
        ("explode", lambda f: f.with_columns(pl.col("li").alias(name)).explode(name)),
        ("int_range", lambda f: f.with_columns(pl.int_range(pl.len()).alias(name))),
        ("cache", lambda f: f.cache()),
        (f"concat {condition}", lambda f: pl.concat([f.filter(condition), f])),
        ("join keys", lambda f: _in_order(f.join(keys, on="row", how=how))),  # pyright: ignore[reportArgumentType]
        (
            f"{how} join itself",
            lambda f: _in_order(
                f.join(
                    f.filter(condition).select(pl.col("row"), pl.col("v").alias(name)),
                    on="row",
                    how=how,  # pyright: ignore[reportArgumentType]
                )
            ),
        ),
        (
            "SQL",
            lambda f: pl.SQLContext(t=f).execute(
                f"SELECT *, SUM(v) OVER (PARTITION BY id) AS {name} FROM t WHERE row < 300"
            ),
        ),
    ]
    return rng.choice(steps)


def _in_order(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Sort the rows of a join, whose order is not defined. Rows that differ have other keys."""
    return frame.sort(pl.exclude("li"))


def _draw_end(rng: random.Random) -> tuple[str, Step]:
    """Return the last step of a query."""
    columns = rng.sample(["row", "id", "v", "s", "day", "li"], rng.randint(1, 4))
    ends: list[tuple[str, Step]] = [
        ("all", lambda f: f),
        (f"select {columns}", lambda f: f.select(columns)),
        (f"select {columns}", lambda f: f.select(columns)),
        ("select nothing", lambda f: f.select([])),
        ("len", lambda f: f.select(pl.len())),
        ("int_range", lambda f: f.select(pl.int_range(pl.len()))),
        ("row index", lambda f: f.with_row_index("ri").select("ri")),
        ("row index, v", lambda f: f.with_row_index("ri").select("ri", "v")),
        ("literal", lambda f: f.select(pl.lit(1))),
        ("over", lambda f: f.select("v", pl.col("row").sum().over("id").alias("w"))),
        ("aggregate", lambda f: f.select(pl.col("row").sum(), pl.col("s").n_unique())),
        (
            "group_by",
            lambda f: f.group_by("s", maintain_order=True).agg(pl.col("row").sum(), pl.len()),
        ),
        (
            "SQL",
            lambda f: pl.SQLContext(t=f).execute(
                "SELECT s, COUNT(*) AS n, MAX(row) AS m FROM t GROUP BY s ORDER BY n, m, s"
            ),
        ),
        ("explode", lambda f: f.explode("li").filter(pl.col("li") == 1).select("row")),
    ]
    return rng.choice(ends)
