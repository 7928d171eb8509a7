"""Compare Spark's own results over random files with every way to use an index on Spark."""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from trust import filters
from trust.lakes import Lake, make_lake
from trust.report import Report

import zonebloom as zb
import zonebloom.spark as zs
from bench.spark_session import spark_session

TREES = 8
KINDS = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16()),
    *(pa.uint32(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.decimal128(9, 2)),
    *(pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()),
    pa.dictionary(pa.int32(), pa.string()),
]


@functools.cache
def session() -> Any:
    """Return the session of the process."""
    spark = spark_session("local[2]", "zonebloom-trust")
    spark.conf.set("spark.sql.shuffle.partitions", 4)
    return spark


def run_case(report: Report, number: int, folder: Path) -> None:
    """A dataset with filters and keys whose results are compared with Spark's."""
    rng = report.begin(number)
    with warnings.catch_warnings():
        # Some layouts are stale on purpose, which causes warnings.
        warnings.simplefilter("ignore", zb.errors.ZoneBloomWarning)
        lake = make_lake(folder / "lake", rng, KINDS)
        if lake is None or lake.format != "parquet" or lake.keys is not None or _has_brotli(lake):
            report.refused["no Parquet that PyArrow and Spark can read"] += 1
            return
        case = _Case(report, lake, rng)
        for _ in range(TREES):
            case.filter()
        for name in lake.indexed:
            case.keys(name)


class _Case:
    def __init__(self, report: Report, lake: Lake, rng: random.Random):
        self.report, self.lake, self.rng = report, lake, rng
        self.path = str(lake.folder)
        self.frame = session().read.parquet(self.path)

    def filter(self) -> None:
        """Compare a random condition in every way with Spark alone."""
        tree = filters.draw(self.lake.columns, self.rng)
        try:
            text = filters.sql(tree, self.rng)
        except filters.NotWritten:
            return
        for part in {part for column in self.lake.columns for part in column.path}:
            text = text.replace(f'"{part}"', f"`{part}`")
        native = lambda: self.frame.where(text)  # noqa: E731
        self._compare(
            f"where {text}",
            native,
            {
                "scan": lambda: zs.scan(session(), self.path, filter=text),
                "prune": lambda: zs.prune(native()),
            },
        )

    def keys(self, name: str) -> None:
        """Compare the rows of some keys of a column: a join of Spark and our joins."""
        column = f"`{name}`" if name in self.frame.columns else name
        if column == name or name in ("p", "q", "row"):
            return
        rows = ", ".join(str(self.rng.randrange(self.lake.whole.num_rows)) for _ in range(6))
        keys = self.frame.where(f"row IN ({rows})").select(column).distinct()
        self._compare(
            f"the keys of {name} in rows {rows}",
            lambda: keys.join(self.frame, name),
            {
                "filter_join": lambda: zs.filter_join(
                    keys, self.frame, name, right_index=self.path
                ),
                "tag_location": lambda: self._tagged(keys, name),
            },
        )

    def _tagged(self, keys: Any, name: str) -> Any:
        """Return the rows at the locations that `tag_location` gives for the keys."""
        tagged = zs.tag_location(keys, self.path, on=name).toArrow()
        places = zip(
            tagged["fragment_id"].to_pylist(), tagged["row_offset"].to_pylist(), strict=True
        )
        addresses = [(number << 32) + offset for number, offset in places if number is not None]
        return self.lake.open().take_rows(addresses, ["row"])

    def _compare(
        self, description: str, native: Callable[[], Any], ways: dict[str, Callable[[], Any]]
    ) -> None:
        try:
            wanted = _rows(native())
        except Exception:  # noqa: BLE001 - a codec or a literal that Spark has no use for
            self.report.refused["Spark, by itself"] += 1
            return
        for way, read in ways.items():
            self.report.tried[way] += 1
            try:
                result = _rows(read())
            except (zb.errors.ZoneBloomError, PySparkException) as error:
                self.report.refused[f"{way}: {type(error).__name__}"] += 1
                continue
            except Exception as error:  # noqa: BLE001 - whatever it is, it is wrong
                self.report.fail(f"{self.lake}: {way}: {error!r:.300}\n    {description:.600}")
                continue
            if result != wanted:
                lost = sorted(set(wanted) - set(result))
                self.report.fail(
                    f"{self.lake}: {way}: {len(lost)} lost {lost[:5]}, {len(result)} rows for "
                    f"{len(wanted)}\n    {description:.600}"
                )


def _has_brotli(lake: Lake) -> bool:
    """Return whether a file has a codec that Spark does not ship."""
    files = map(pq.read_metadata, lake.folder.rglob("*.parquet"))
    return any(
        file.num_row_groups and file.row_group(0).column(0).compression == "BROTLI"
        for file in files
    )


def _rows(source: Any) -> list[int]:
    """Return the row numbers of a frame or table in ascending order."""
    table = source if isinstance(source, pa.Table) else source.select("row").toArrow()
    return sorted(table["row"].to_pylist())
