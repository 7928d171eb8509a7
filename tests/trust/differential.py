"""Check that a filter gives the rows of an oracle in every language and for every way to read.

The oracle for SQL is DuckDB, and plain Python over the distinct values for types that it lacks. The
oracle for PyArrow's expressions and tuples is PyArrow's filter over the table in memory. The oracle
for Polars is its own filter over the frame in memory.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from support.e2e_helpers import array_of
from trust import filters
from trust.lakes import Lake, make_lake, raws_of, value_type
from trust.report import Report

import zonebloom as zb
from zonebloom.base.row_ranges import RowRanges
from zonebloom.scan.recheck import gather

TREES = 60

# The errors of engines that do not support a filter. Polars' panics derive from BaseException.
ENGINES = (pa.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException)
ENGINES += (TypeError, ValueError, OverflowError)


def run_case(report: Report, number: int, folder: Path, trees: int = TREES) -> None:
    """Check one random dataset with ``trees`` filters in all languages."""
    rng = report.begin(number)
    with warnings.catch_warnings():
        # Some layouts are stale on purpose.
        warnings.simplefilter("ignore", zb.errors.StaleIndexWarning)
        warnings.simplefilter("error", zb.errors.IndexNotUsedWarning)
        lake = make_lake(folder / "lake", rng)
        if lake is None:
            report.refused["PyArrow cannot read what was written"] += 1
        else:
            _Case(report, lake, rng).run(trees)


def _plain(table: pa.Table) -> pa.Table:
    """Return a table without view types, because PyArrow has no kernels for these."""
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    fields = [field.with_type(views.get(field.type, field.type)) for field in table.schema]
    return table.cast(pa.schema(fields))


def in_polars(table: pa.Table) -> pl.DataFrame | None:
    """Return a table as a Polars frame, or None if Polars lacks one of its types."""
    try:
        return pl.from_arrow(table)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None


def same_rows(result: pa.Table, expected: pa.Table) -> bool:
    """Return whether tables are equal, where NaN equals NaN."""
    if not result.schema.equals(expected.schema):
        return False
    pairs = zip(result.columns, expected.columns, strict=True)
    return all(
        left.equals(right) or repr(flat_raws(left)) == repr(flat_raws(right))
        for left, right in pairs
    )


def flat_raws(column: pa.ChunkedArray) -> list[Any]:
    """Return the plain values of a column, for a struct those of its leaves."""
    if not pa.types.is_struct(column.type):
        return raws_of(column)
    return [column.is_null().to_pylist(), *(flat_raws(leaf) for leaf in column.flatten())]


_NANOSECONDS = re.compile(r"\b(TIMESTAMPTZ|TIMESTAMP|TIME) ('[^']*\.\d{7,}[^']*')")


class _Case:
    def __init__(self, report: Report, lake: Lake, rng: random.Random):
        self.report = report
        self.lake = lake
        self.rng = rng
        self.ds = lake.open()
        self.memory = pads.dataset(_plain(lake.whole))
        self.frame = in_polars(lake.whole)
        self.lazy_whole = self._lazily_whole()
        self.first_rows = self._first_rows()

    def _lazily_whole(self) -> pl.DataFrame | None:
        """Return all rows with the types of Polars, which sometimes differ from Arrow's."""
        if self.frame is None:
            return None
        try:
            self.lazy = self.ds.to_polars()
            return self.lazy.collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            # Check whether Polars itself cannot read the files, or reads other types than pyarrow.
            # For example, writers in Rust store times in a unit that Parquet does not have.
            stored = [name for name in self.lake.whole.column_names if name not in ("p", "q")]
            frames = [pl.scan_parquet(file, hive_partitioning=False) for file in self.ds.files]
            try:
                read_rows = pl.concat([frame.select(stored) for frame in frames]).collect()
                if read_rows.schema == self.frame.select(read_rows.columns).schema:
                    self.report.fail(f"{self.lake}: to_polars: {error!r:.300}")
                self.report.refused["to_polars: Polars has other types than pyarrow"] += 1
            except ENGINES:
                self.report.refused["to_polars: Polars cannot read the files"] += 1
            return None

    def _first_rows(self) -> dict[int, int]:
        """Return the number of the first row of each fragment id in scan order."""
        result = self.ds.search("row IS NULL OR row IS NOT NULL")
        ids = {path: fragment_id for fragment_id, path in result.paths.items()}
        first_rows, num_rows = {}, 0
        for fragment in self.ds.opened.source.fragments:
            first_rows[ids[fragment.key]] = num_rows
            num_rows += self.lake.opened(fragment.path).count_rows()
        assert num_rows == self.lake.whole.num_rows
        return first_rows

    def run(self, trees: int) -> None:
        for number in range(trees):
            language = self.rng.choice([None, None, *filters.SPECIAL])
            tree = filters.draw(self.lake.columns, self.rng, language)
            for written in (language,) if language else ("SQL", "PyArrow", "tuples", "Polars"):
                if written != "Polars" or self.frame is not None:
                    self._language(number, written, tree)
        for column in self.lake.columns:
            if column.name in self.lake.indexed:
                self._search_many(column)

    def _language(self, number: int, language: str, tree: filters.Tree) -> None:
        try:
            written: Any = {
                "SQL": lambda: filters.sql(tree, self.rng),
                "PyArrow": lambda: filters.arrow(tree),
                "tuples": lambda: filters.tuples(tree),
                "Polars": lambda: filters.polars(tree, self.rng),
            }[language]()
        except (filters.NotWritten, *ENGINES):
            return
        expected = self._oracle(language, tree, written)
        description = f"tree {number} in {language}: {filters.text(tree):.600}"
        for way, read_rows in self._ways(language, written, expected):
            self.report.tried[f"{language}, {way}"] += 1
            try:
                result = read_rows()
            except zb.errors.ZoneBloomError as error:
                self._record_refusal(language, way, expected, description, error)
            except ENGINES as error:
                if language == "Polars" and (expected is None or self._scan_refuses(written)):
                    # Polars evaluates its filters itself and refuses this one without us too.
                    self.report.refused["Polars, by itself"] += 1
                else:
                    self.report.fail(f"{self.lake}: {way}: {error!r:.300}\n    {description}")
            except Exception as error:  # noqa: BLE001 - any other error is a failure
                self.report.fail(f"{self.lake}: {way}: {error!r:.300}\n    {description}")
            else:
                self._compare(way, result, expected, description)

    def _scan_refuses(self, filter: pl.Expr) -> bool:
        """Return whether Polars' own scan refuses a filter."""
        try:
            pl.scan_parquet(self.ds.files, hive_partitioning=True).filter(filter).collect()
        except ENGINES:
            return True
        return False

    def _record_refusal(
        self,
        language: str,
        way: str,
        expected: np.ndarray | None,
        description: str,
        error: Exception,
    ) -> None:
        kind = type(error).__name__
        if expected is not None and not isinstance(error, zb.errors.FilterError):
            self.report.fail(f"{self.lake}: {way}: refused: {error!r:.300}\n    {description}")
        suffix = "" if expected is not None else ", as the oracle does"
        self.report.refused[f"{language}, {kind}{suffix}"] += 1

    def _compare(
        self, way: str, result: Any, expected: np.ndarray | None, description: str
    ) -> None:
        if expected is None:
            # The engine of the oracle refuses the filter, so there is nothing to compare with.
            self.report.refused["by the oracle alone"] += 1
            return
        if isinstance(result, str):
            problem = result
        elif isinstance(result, np.ndarray) and not np.array_equal(result, expected):
            lost = np.setdiff1d(expected, result)
            extra = np.setdiff1d(result, expected)
            problem = (
                f"{lost.size} lost {lost[:5]}, {extra.size} extra {extra[:5]}, of {expected.size}"
            )
        else:
            return
        if problem:
            self.report.fail(f"{self.lake}: {way}: {problem}\n    {description}")

    def _oracle(self, language: str, tree: filters.Tree, written: Any) -> np.ndarray | None:
        """Return the rows in scan order, or None if the engine refuses the filter."""
        if language == "SQL":
            return self._rows_of_duckdb(tree, written)
        row = self.lake.whole["row"].to_numpy()
        try:
            if language == "Polars":
                frame = self.frame.lazy().with_row_index("_at").filter(written).collect()
                return frame["_at"].to_numpy().astype(np.int64)
            expression = pq.filters_to_expression(written) if language == "tuples" else written
            names = {"row": pc.field("row")}
            matches = self.memory.to_table(columns=names, filter=expression)["row"].to_numpy()
            return np.flatnonzero(np.isin(row, matches))
        except ENGINES:
            return None

    def _rows_of_duckdb(self, tree: filters.Tree, text: str) -> np.ndarray | None:
        """Return the rows that DuckDB finds, or plain Python for types that DuckDB lacks."""
        columns = filters.columns_of(tree)
        if any(filters.is_unknown_to_duckdb(column.type) for column in columns):
            return np.flatnonzero(filters.truth(tree, self.lake.whole.num_rows)[0])
        names = sorted({column.path[0] for column in columns})
        table = self.lake.whole.select(names)
        table = table.append_column("_at", pa.array(np.arange(table.num_rows)))
        try:
            with duckdb.connect() as connection:
                connection.execute("SET TimeZone = 'UTC'; PRAGMA disable_optimizer")
                connection.register("whole", table)
                text = text.replace("<=>", "IS NOT DISTINCT FROM")
                # We compare nanoseconds exactly, which DuckDB cuts off its TIMESTAMP.
                text = _NANOSECONDS.sub(r"\1_NS \2", text)
                rows = connection.execute(f"SELECT _at FROM whole WHERE {text} ORDER BY _at")
                return np.array([row for (row,) in rows.fetchall()], dtype=np.int64)
        except duckdb.Error:
            return None

    def _ways(
        self, language: str, written: Any, expected: np.ndarray | None
    ) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield names of ways to read, with functions that return row numbers or a problem."""
        ds, rng = self.ds, self.rng
        places = np.empty(self.lake.whole.num_rows, dtype=np.int64)
        places[self.lake.whole["row"].to_numpy()] = np.arange(places.size)

        def numbers(table: Any) -> np.ndarray:
            return places[np.asarray(table["row"].to_numpy(), dtype=np.int64)]

        def batches() -> np.ndarray:
            batch_size = rng.choice([7, 100, 10_000])
            parts = [
                numbers(batch) for batch in ds.to_batches(["row"], written, batch_size=batch_size)
            ]
            return np.concatenate(parts or [np.empty(0, np.int64)])

        def whole_rows() -> str | np.ndarray:
            table = ds.to_table(filter=written)
            if expected is None or table.num_rows != expected.size:
                return numbers(table)
            expected_table = gather(self.lake.whole, expected)
            return "" if same_rows(table, expected_table) else "values differ"

        def count() -> str:
            count = ds.count_rows(written)
            return "" if expected is None or count == expected.size else f"counted {count}"

        def head() -> str:
            num_rows = rng.choice([0, 1, 3, 50])
            rows = numbers(ds.head(num_rows, filter=written, columns=["row"]))
            is_right = expected is None or np.array_equal(rows, expected[:num_rows])
            return "" if is_right else f"head {num_rows} gave {rows[:5]}"

        def through_duckdb() -> np.ndarray:
            stream = ds.scanner(["row"], written).to_reader()  # noqa: F841 - read by name
            try:
                return numbers(duckdb.sql("SELECT row FROM stream").arrow().read_all())
            except (duckdb.Error, OSError) as error:
                # Arrow's C interface passes only the text of an error on.
                raise zb.errors.FilterError(str(error)) from error

        yield "index", lambda: numbers(ds.to_table(["row"], written))
        yield (
            "no index",
            lambda: numbers(ds.to_table(["row"], written, use_scalar_index=False)),
        )
        yield "search", lambda: self._search(written, expected)
        yield "count_rows", count
        other_ways = {
            "to_batches": batches,
            "whole rows": whole_rows,
            "head": head,
            "DuckDB": through_duckdb,
        }
        for name in rng.sample(list(other_ways), 2):
            yield name, other_ways[name]
        if language == "Polars" and self.lazy_whole is not None:
            engine = rng.choice(["in-memory", "streaming"])

            def lazily() -> np.ndarray:
                return numbers(self.lazy.filter(written).select("row").collect(engine=engine))

            yield "to_polars", lazily

    def _search(self, written: Any, expected: np.ndarray | None) -> str:
        """Return a problem if a search loses rows, or if take returns other rows by address."""
        result = self.ds.search(written)
        if expected is None:
            return ""
        starts = np.array(sorted(self.first_rows.values()))
        ids = {first: fragment_id for fragment_id, first in self.first_rows.items()}
        positions = np.searchsorted(starts, expected, side="right") - 1
        addresses = np.array(
            [
                (ids[int(starts[position])] << 32) + row - int(starts[position])
                for position, row in zip(positions.tolist(), expected.tolist(), strict=True)
            ],
            dtype=np.int64,
        )
        ascending = np.sort(addresses)
        lost = RowRanges.from_arrays(ascending, ascending + 1) - result.at_most
        if lost:
            return f"search rules out {len(lost)} of {expected.size} rows"
        step = max(1, addresses.size // 20)
        rows = self.ds.take_rows(addresses[::step], ["row"])["row"].to_numpy()
        expected_rows = self.lake.whole["row"].to_numpy()[expected[::step]]
        return "" if np.array_equal(rows, expected_rows) else "take brought other rows"

    def _search_many(self, column: Any) -> None:
        """Check that each value of a column is in the zones that search_many returns for it."""
        raws = self.rng.sample(column.raws, min(len(column.raws), 20))
        keys = array_of(value_type(column.type), raws)
        self.report.tried["keys, search_many"] += len(raws)
        zones: dict[int, set] = {}
        for hit in self.ds.search_many(column.name, keys).read_all().to_pylist():
            zones.setdefault(hit["key_index"], set()).add((hit["fragment_id"], hit["zone"]))
        items = self.ds.opened.version.indices[f"{column.name}_idx"].number_of_items
        starts = sorted((first, fragment_id) for fragment_id, first in self.first_rows.items())
        codes = {repr(raw): code for code, raw in enumerate(column.raws)}
        for key, raw in enumerate(raws):
            for row in np.flatnonzero(column.codes == codes[repr(raw)])[:10].tolist():
                first, fragment = max(start for start in starts if start[0] <= row)
                answer = zones.get(key, set())
                if not {(fragment, (row - first) // items), (fragment, None)} & answer:
                    self.report.fail(
                        f"{self.lake}: search_many denies {raw!r:.80} of {column.name} "
                        f"({column.type}) in row {row}"
                    )
