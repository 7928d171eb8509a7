"""The same filter in every language and by every way of reading gives the rows of an oracle.

The oracles: for SQL plain Python over the distinct values (and DuckDB where it agrees on NaN), for
PyArrow's expressions and tuples PyArrow's own filter over the table in memory, for Polars
its own filter over the frame in memory.
"""

from __future__ import annotations

import random
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
from e2e_helpers import array_of
from trust import filters
from trust.lakes import Lake, make_lake, raws_of, value_type
from trust.report import Report

import zonebloom as zb
from zonebloom.base.row_ranges import RowRanges
from zonebloom.scan.recheck import gather

TREES = 60

# What engines raise for a filter they do not know, Polars' panics being no Exception.
ENGINES = (pa.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException)
ENGINES += (TypeError, ValueError, OverflowError)


def run_case(report: Report, number: int, folder: Path) -> None:
    """One dataset, with filters in all languages."""
    rng = report.begin(number)
    with warnings.catch_warnings():
        # Layouts that are stale on purpose say so.
        warnings.simplefilter("ignore", zb.errors.StaleIndexWarning)
        warnings.simplefilter("error", zb.errors.IndexNotUsedWarning)
        lake = make_lake(folder / "lake", rng)
        if lake is None:
            report.refused["PyArrow cannot read what was written"] += 1
        else:
            _Case(report, lake, rng).run()


def _plain(table: pa.Table) -> pa.Table:
    """A table without view types, for which PyArrow has no kernels."""
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return table.cast(
        pa.schema([each.with_type(views.get(each.type, each.type)) for each in table.schema])
    )


def in_polars(table: pa.Table) -> pl.DataFrame | None:
    """A table as Polars has it; None where it has no such type."""
    try:
        return pl.from_arrow(table)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None


def same_rows(found: pa.Table, expected: pa.Table) -> bool:
    """Whether tables are equal, NaN being NaN."""
    if not found.schema.equals(expected.schema):
        return False
    pairs = zip(found.columns, expected.columns, strict=True)
    return all(
        left.equals(right) or repr(flat_raws(left)) == repr(flat_raws(right))
        for left, right in pairs
    )


def flat_raws(column: pa.ChunkedArray) -> list[Any]:
    """Plain values; of a struct, those of its leaves."""
    if not pa.types.is_struct(column.type):
        return raws_of(column)
    return [column.is_null().to_pylist(), *(flat_raws(each) for each in column.flatten())]


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
        """All rows with Polars' own types, which are other than Arrow's now and then."""
        if self.frame is None:
            return None
        try:
            self.lazy = self.ds.to_polars()
            return self.lazy.collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            # Polars cannot read the files either, or sees other types in them than pyarrow:
            # times in a unit that Parquet has not, as Rust's writers put them there.
            stored = [name for name in self.lake.whole.column_names if name not in ("p", "q")]
            files = [pl.scan_parquet(each, hive_partitioning=False) for each in self.ds.files]
            try:
                read = pl.concat([each.select(stored) for each in files]).collect()
                if read.schema == self.frame.select(read.columns).schema:
                    self.report.fail(f"{self.lake}: to_polars: {error!r:.300}")
                self.report.refused["to_polars: Polars has other types than pyarrow"] += 1
            except ENGINES:
                self.report.refused["to_polars: Polars cannot read the files"] += 1
            return None

    def _first_rows(self) -> dict[int, int]:
        """Of each fragment id, the number of its first row in scan order."""
        found = self.ds.search("row IS NULL OR row IS NOT NULL")
        by_path = {path: fragment_id for fragment_id, path in found.paths.items()}
        first, at = {}, 0
        for fragment in self.ds.opened.source.fragments:
            first[by_path[fragment.key]] = at
            at += self.lake.opened(fragment.path).count_rows()
        assert at == self.lake.whole.num_rows
        return first

    def run(self) -> None:
        for number in range(TREES):
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
        wanted = self._oracle(language, tree, written)
        said = f"tree {number} in {language}: {filters.text(tree):.600}"
        for way, read in self._ways(language, written, wanted):
            self.report.tried[f"{language}, {way}"] += 1
            try:
                found = read()
            except zb.errors.ZoneBloomError as error:
                self._refused(language, way, wanted, said, error)
            except ENGINES as error:
                if language == "Polars" and (wanted is None or self._scan_refuses(written)):
                    # Polars applies its filters itself, and refuses this one anyway.
                    self.report.refused["Polars, by itself"] += 1
                else:
                    self.report.fail(f"{self.lake}: {way}: {error!r:.300}\n    {said}")
            except Exception as error:  # noqa: BLE001 - whatever it is, it is wrong
                self.report.fail(f"{self.lake}: {way}: {error!r:.300}\n    {said}")
            else:
                self._compare(way, found, wanted, said)

    def _scan_refuses(self, filter: pl.Expr) -> bool:
        """Whether Polars' own scan refuses a filter: it sees dates as moments, or looks further."""
        try:
            pl.scan_parquet(self.ds.files, hive_partitioning=True).filter(filter).collect()
        except ENGINES:
            return True
        return False

    def _refused(
        self, language: str, way: str, wanted: np.ndarray | None, said: str, error: Exception
    ) -> None:
        kind = type(error).__name__
        if wanted is not None and not isinstance(error, zb.errors.FilterError):
            self.report.fail(f"{self.lake}: {way}: refused: {error!r:.300}\n    {said}")
        whose = "" if wanted is not None else ", as the oracle does"
        self.report.refused[f"{language}, {kind}{whose}"] += 1

    def _compare(self, way: str, found: Any, wanted: np.ndarray | None, said: str) -> None:
        if wanted is None:
            # The engine itself has no answer: nothing to hold this one against.
            self.report.refused["by the oracle alone"] += 1
            return
        if isinstance(found, str):
            problem = found
        elif isinstance(found, np.ndarray) and not np.array_equal(found, wanted):
            lost = np.setdiff1d(wanted, found)
            extra = np.setdiff1d(found, wanted)
            problem = (
                f"{lost.size} lost {lost[:5]}, {extra.size} extra {extra[:5]}, of {wanted.size}"
            )
        else:
            return
        if problem:
            self.report.fail(f"{self.lake}: {way}: {problem}\n    {said}")

    def _oracle(self, language: str, tree: filters.Tree, written: Any) -> np.ndarray | None:
        """Numbers of the rows in scan order; None where the engine refuses the filter."""
        if language == "SQL":
            wanted = np.flatnonzero(filters.truth(tree, self.lake.whole.num_rows)[0])
            return wanted
        row = self.lake.whole["row"].to_numpy()
        try:
            if language == "Polars":
                found = self.frame.lazy().with_row_index("_at").filter(written).collect()
                return found["_at"].to_numpy().astype(np.int64)
            expression = pq.filters_to_expression(written) if language == "tuples" else written
            names = {"row": pc.field("row")}
            found = self.memory.to_table(columns=names, filter=expression)["row"].to_numpy()
            return np.flatnonzero(np.isin(row, found))
        except ENGINES:
            return None

    def _ways(
        self, language: str, written: Any, wanted: np.ndarray | None
    ) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Names of ways to read, and each as what gives row numbers or says what is wrong."""
        ds, rng = self.ds, self.rng
        places = np.empty(self.lake.whole.num_rows, dtype=np.int64)
        places[self.lake.whole["row"].to_numpy()] = np.arange(places.size)

        def numbers(table: Any) -> np.ndarray:
            return places[np.asarray(table["row"].to_numpy(), dtype=np.int64)]

        def batches() -> np.ndarray:
            found = list(ds.to_batches(["row"], written, batch_size=rng.choice([7, 100, 10_000])))
            return np.concatenate([numbers(each) for each in found] or [np.empty(0, np.int64)])

        def whole_rows() -> str | np.ndarray:
            found = ds.to_table(filter=written)
            if wanted is None or found.num_rows != wanted.size:
                return numbers(found)
            expected = gather(self.lake.whole, wanted)
            return "" if same_rows(found, expected) else "values differ"

        def count() -> str:
            found = ds.count_rows(written)
            return "" if wanted is None or found == wanted.size else f"counted {found}"

        def head() -> str:
            most = rng.choice([0, 1, 3, 50])
            found = numbers(ds.head(most, written, columns=["row"]))
            right = wanted is None or np.array_equal(found, wanted[:most])
            return "" if right else f"head {most} gave {found[:5]}"

        def through_duckdb() -> np.ndarray:
            stream = ds.scanner(["row"], written).to_reader()  # noqa: F841 - read by name
            try:
                return numbers(duckdb.sql("SELECT row FROM stream").arrow().read_all())
            except (duckdb.Error, OSError) as error:
                # What goes through Arrow's C interface is a text at the other end.
                raise zb.errors.FilterError(str(error)) from error

        yield "index", lambda: numbers(ds.to_table(["row"], written))
        yield (
            "no index",
            lambda: numbers(ds.to_table(["row"], written, use_scalar_index=False)),
        )
        yield "search", lambda: self._search(written, wanted)
        yield "count_rows", count
        others = {
            "to_batches": batches,
            "whole rows": whole_rows,
            "head": head,
            "DuckDB": through_duckdb,
        }
        for name in rng.sample(list(others), 2):
            yield name, others[name]
        if language == "Polars" and self.lazy_whole is not None:
            engine = rng.choice(["in-memory", "streaming"])

            def lazily() -> np.ndarray:
                return numbers(self.lazy.filter(written).select("row").collect(engine=engine))

            yield "to_polars", lazily

    def _search(self, written: Any, wanted: np.ndarray | None) -> str:
        """Whether a search keeps all rows, and take brings those rows by their addresses."""
        found = self.ds.search(written)
        if wanted is None:
            return ""
        starts = np.array(sorted(self.first_rows.values()))
        ids = {first: each for each, first in self.first_rows.items()}
        which = np.searchsorted(starts, wanted, side="right") - 1
        addresses = np.array(
            [
                (ids[int(starts[part])] << 32) + row - int(starts[part])
                for part, row in zip(which.tolist(), wanted.tolist(), strict=True)
            ],
            dtype=np.int64,
        )
        ascending = np.sort(addresses)
        outside = RowRanges.from_arrays(ascending, ascending + 1) - found.at_most
        if outside:
            return f"search rules out {len(outside)} of {wanted.size} rows"
        few = addresses[:: max(1, addresses.size // 20)]
        taken = self.ds.take(few, ["row"])["row"].to_numpy()
        expected = self.lake.whole["row"].to_numpy()[wanted[:: max(1, addresses.size // 20)]]
        return "" if np.array_equal(taken, expected) else "take brought other rows"

    def _search_many(self, column: Any) -> None:
        """Every value of a column is in the zones that search_many names for it."""
        raws = self.rng.sample(column.raws, min(len(column.raws), 20))
        keys = array_of(value_type(column.type), raws)
        self.report.tried["keys, search_many"] += len(raws)
        found = self.ds.search_many(column.name, keys).read_all().to_pylist()
        zones: dict[int, set] = {}
        for each in found:
            zones.setdefault(each["key_index"], set()).add((each["fragment_id"], each["zone"]))
        items = self.ds.opened.version.indices[f"{column.name}_idx"].parameters.number_of_items
        starts = sorted((first, each) for each, first in self.first_rows.items())
        codes = {repr(raw): code for code, raw in enumerate(column.raws)}
        for key, raw in enumerate(raws):
            for row in np.flatnonzero(column.codes == codes[repr(raw)])[:10].tolist():
                first, fragment = max(each for each in starts if each[0] <= row)
                answer = zones.get(key, set())
                if not {(fragment, (row - first) // items), (fragment, None)} & answer:
                    self.report.fail(
                        f"{self.lake}: search_many denies {raw!r:.80} of {column.name} "
                        f"({column.type}) in row {row}"
                    )
