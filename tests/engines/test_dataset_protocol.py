"""Test a dataset as a PyArrow dataset: engines return the right rows, and read fewer bytes."""

from __future__ import annotations

import datetime as dt
import os
import random
from decimal import Decimal
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
import support.e2e_helpers as e2e

import zonebloom as zb
from zonebloom.errors import (
    ColumnNotFound,
    FilterError,
    FragmentUnreadable,
    InvalidArgument,
    ZoneBloomWarning,
)

FILES, ROWS, ZONE = 3, 20_000, 250
COUNT = FILES * ROWS
INDEXED = ["id", "u", "s", "ts", "tz", "d", "dec", "f", "bin", "st.x"]
F = pc.field
NAN = float("nan")


def table(first: int) -> pa.Table:
    """Return rows with distinct keys in random order. Every 500th key is null."""
    rng = random.Random(first)
    numbers = list(range(first, first + ROWS))
    rng.shuffle(numbers)
    keys = [None if key % 500 == 7 else key for key in numbers]

    def column(value, kind):
        return pa.array([None if key is None else value(key) for key in keys], kind)

    return pa.table(
        {
            "row": pa.array(range(first, first + ROWS), pa.int64()),
            "id": column(lambda key: key, pa.int64()),
            "u": column(lambda key: 2**63 + key, pa.uint64()),
            "s": column(lambda key: f"key {key}", pa.string()),
            "ts": column(lambda key: 10**15 + key, pa.timestamp("us")),
            "tz": column(lambda key: 10**15 + key, pa.timestamp("us", "Europe/Berlin")),
            "d": column(lambda key: key, pa.date32()),
            "dec": column(lambda key: Decimal(key) / 100, pa.decimal128(12, 2)),
            "f": column(lambda key: {0: -0.0, 1: NAN}.get(key, key / 4), pa.float64()),
            "bin": column(lambda key: b"\xff%d" % key, pa.binary()),
            "st": pa.array([{"x": key, "y": "y"} for key in keys]),
            "plain": pa.array([key % 7 for key in numbers], pa.int64()),
            "flag": pa.array([key % 2 == 0 for key in numbers]),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrow") / "rows"
    tables = [table(number * ROWS) for number in range(FILES)]
    e2e.write_files(
        folder,
        tables,
        row_group_size=10_000,
        write_page_index=True,
        max_rows_per_page=ZONE,
        use_dictionary=False,
    )
    for column in INDEXED:
        e2e.build(zb.dataset(folder), column, number_of_items=ZONE)
    return folder


@pytest.fixture(scope="module")
def counting():
    return e2e.CountingFileSystem()


@pytest.fixture(scope="module")
def rows(folder, counting):
    return zb.dataset(str(folder), filesystem=counting.wrapped())


@pytest.fixture(scope="module")
def plain(folder):
    return pads.dataset(folder)


@pytest.fixture(scope="module")
def size(folder):
    return sum(path.stat().st_size for path in folder.glob("*.parquet"))


def run_and_count(counting, run):
    """Return the result of a function, and the number of bytes of data files that it read."""
    before = counting.data_bytes
    return run(), counting.data_bytes - before


def sorted_reprs(rows):
    # Compare texts, because NaN does not equal itself.
    return sorted(map(repr, rows))


# Conditions that few rows satisfy, in SQL that both DuckDB and DataFusion support.
NARROW = [
    "id = 42",
    "42 = id",
    "id IN (42, 4242)",
    "id IN (42, 4242, 8001, 8002, 8003, 12000, 99999999)",
    "id = 42 OR id = 4242 OR s = 'key 77'",
    "id = 42 AND s = 'key 42'",
    "id = 42 AND s = 'key 43'",
    "id IN (42, 4242) AND plain > 0",
    "(id = 42 AND s = 'key 42') OR (id = 4242 AND plain = 0)",
    "id BETWEEN 42 AND 42",
    "id = -1",
    "s = 'key 42'",
    "s IN ('key 42', 'key 4242', 'no key')",
    "ts = TIMESTAMP '2001-09-09 01:46:40.000042'",
    "d = DATE '1970-02-12'",
    "d IN (DATE '1970-02-12', DATE '1970-02-13')",
    "dec = 0.42",
    "dec IN (0.42, 42.42, 1.00)",
    "f = 10.5",
    "f = 0.0",
    "f IN (10.5, 11.5)",
    "u = 9223372036854775850",
    "id = 42 AND flag",
]
DUCKDB_NARROW = [
    "tz = TIMESTAMPTZ '2001-09-09 01:46:40.000042+00'",
    "bin = '\\xFF42'::BLOB",
    "bin IN ('\\xFF42'::BLOB, '\\xFF4242'::BLOB)",
    "st.x = 42",
    "st.x IN (42, 4242)",
    "u IN (9223372036854775850, 9223372036854775851)",
    "id = '42'",
    "list_contains([42, 4242], id)",
]
WIDE = [
    "id IS NULL",
    "id IS NOT NULL AND plain = 1",
    "id IS NULL OR id = 42",
    "id IN (42, NULL)",
    "id NOT IN (42, 4242)",
    "id != 42",
    "NOT (id = 42 OR s = 'key 77')",
    "id > 12000",
    "s LIKE 'key 4%'",
    "s IS NULL AND plain = 3",
    "f >= 3000.0",
    "f != 10.5",
    "plain = 3",
    "plain IN (3, 4)",
    "flag",
    "NOT flag",
    "id = 42.0",
    "id + 0 = 42",
    "upper(s) = 'KEY 42'",
    "CASE WHEN id IS NULL THEN plain = 1 ELSE id = 42 END",
    "f = 'nan'",
    "f IN (10.5, 'nan')",
]


@pytest.fixture(scope="module")
def con(rows, folder):
    duckdb = pytest.importorskip("duckdb")
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    con.register("rows", rows)
    # Copy the rows instead of creating a view, because DuckDB loses rows with NaN in a scan of the
    # files: the statistics in Parquet files ignore NaN.
    con.execute(f"CREATE TABLE files AS FROM read_parquet('{folder}/*.parquet')")
    con.execute("CREATE TABLE keys AS FROM (VALUES (42), (4242), (-1), (NULL)) AS keys(key)")
    return con


class SqlEngine:
    """Tests of every SQL engine. Subclasses add the fixture `engine` and a method `assert_same`."""

    @pytest.mark.parametrize("condition", WIDE)
    def test_no_row_is_lost(self, engine, condition):
        self.assert_same(engine, f"SELECT row, id, plain FROM {{}} WHERE {condition}")
        self.assert_same(engine, f"SELECT count(*) FROM {{}} WHERE {condition}")


class TestDuckDB(SqlEngine):
    @pytest.fixture
    def engine(self, con):
        return con

    def assert_same(self, con, query, parameters=None):
        rows = con.execute(query.format("rows"), parameters).fetchall()
        expected = con.execute(query.format("files"), parameters).fetchall()
        assert sorted_reprs(rows) == sorted_reprs(expected)
        return rows

    @pytest.mark.parametrize("condition", NARROW + DUCKDB_NARROW)
    def test_narrow_conditions_read_few_bytes(self, con, counting, size, condition):
        query = f"SELECT * FROM {{}} WHERE {condition}"
        _, num_bytes = run_and_count(counting, lambda: self.assert_same(con, query))
        assert num_bytes < size / 3

    def test_prepared_parameters_use_the_index(self, con, counting, size):
        for parameters, divisor in [([42], 6), ([4242], 6), ([-1], 1000), ([None], 1000)]:
            query = partial(self.assert_same, con, "SELECT * FROM {} WHERE id = ?", parameters)
            assert run_and_count(counting, query)[1] < size / divisor
        values = ["key 1", "key 2"]
        query = partial(self.assert_same, con, "SELECT * FROM {} WHERE s IN (?, ?)", values)
        assert run_and_count(counting, query)[1] < size / 3
        con.execute("PREPARE one AS SELECT row FROM rows WHERE id = $1 AND s = $2")
        for key, count in [("key 42", 1), ("key 43", 0)]:
            run = partial(con.execute, f"EXECUTE one(42, '{key}')")
            rows, num_bytes = run_and_count(counting, lambda run=run: run().fetchall())
            assert len(rows) == count
            assert num_bytes < size / 50
        con.execute("DEALLOCATE one")

    def test_joins_return_the_right_rows(self, con):
        self.assert_same(con, "SELECT row FROM {} JOIN keys ON id = key")
        self.assert_same(con, "SELECT row FROM {} WHERE id IN (SELECT key FROM keys)")
        self.assert_same(con, "SELECT key, row FROM keys LEFT JOIN {} ON id = key")
        self.assert_same(con, "SELECT count(*) FROM {0} a JOIN {0} b ON a.id = b.plain")
        self.assert_same(con, "SELECT a.row FROM {0} a JOIN {0} b USING (id) WHERE a.id IN (42, 7)")
        self.assert_same(con, "SELECT row FROM {} WHERE id = (SELECT max(key) FROM keys)")

    def test_aggregates_and_limits_return_the_right_rows(self, con, rows):
        self.assert_same(con, "SELECT count(*) FROM {}")
        self.assert_same(con, "SELECT plain, count(*), sum(id) FROM {} GROUP BY ALL")
        self.assert_same(con, "SELECT row FROM {} WHERE plain = 3 ORDER BY row DESC LIMIT 7")
        assert len(con.execute("SELECT * FROM rows WHERE plain = 3 LIMIT 5").fetchall()) == 5
        import duckdb

        assert duckdb.sql("SELECT row FROM rows WHERE id = 42").fetchall()


class TestIbis:
    def test_a_filter_of_ibis_reads_few_bytes(self, rows, plain, counting, size):
        ibis = pytest.importorskip("ibis")
        indexed, files = ibis.memtable(rows), ibis.memtable(plain)

        def run(table):
            matches = table.filter(
                (table.id.isin([42, 4242]) | (table.s == "key 77")) & table.id.notnull()
            )
            return matches.order_by("row").select("row", "id", "plain").to_pyarrow()

        result, num_bytes = run_and_count(counting, lambda: run(indexed))
        assert result.equals(run(files)) and result.num_rows == 3
        assert num_bytes < size / 3


@pytest.fixture(scope="module")
def context(rows, plain, folder):
    datafusion = pytest.importorskip("datafusion")
    context = datafusion.SessionContext()
    context.register_dataset("rows", rows)
    context.register_dataset("plain", plain)
    context.register_parquet("files", str(folder))
    return context


class TestDataFusion(SqlEngine):
    @pytest.fixture
    def engine(self, context):
        return context

    def assert_same(self, context, query):
        # DataFusion sorts NaN above all numbers and distinguishes signed zeros. PyArrow does not,
        # and it evaluates the filters of its datasets. So compare with a PyArrow dataset.
        files = "plain" if " f " in query else "files"
        rows, expected = (
            [
                row
                for batch in context.sql(query.format(source)).collect()
                for row in batch.to_pylist()
            ]
            for source in ("rows", files)
        )
        assert sorted_reprs(rows) == sorted_reprs(expected)
        return rows

    @pytest.mark.parametrize(
        "condition", [condition for condition in NARROW if condition[0] != "u"]
    )
    def test_narrow_conditions_read_few_bytes(self, context, counting, size, condition):
        query = f"SELECT row, id, s, ts, dec, plain FROM {{}} WHERE {condition}"
        _, num_bytes = run_and_count(counting, lambda: self.assert_same(context, query))
        assert num_bytes < size / 3

    def test_joins_return_the_right_rows(self, context):
        query = "SELECT a.row FROM {0} a JOIN {0} b ON a.id = b.id WHERE b.s = 'key 42'"
        assert self.assert_same(context, query)


@pytest.fixture(scope="module")
def frames(rows, plain):
    pl = pytest.importorskip("polars")
    return pl.scan_pyarrow_dataset(rows), pl.scan_pyarrow_dataset(plain)


class TestPolars:
    def conditions(self):
        import polars as pl

        c = pl.col
        narrow = [
            c.id == 42,
            c.id.is_in([42, 4242]),
            (c.id == 42) | (c.s == "key 77"),
            (c.id == 42) & (c.s == "key 43"),
            c.id.is_between(42, 42),
            c.s == "key 42",
            c.s.is_in(["key 42", "none"]),
            c.ts == dt.datetime(2001, 9, 9, 1, 46, 40, 42),
            c.d == dt.date(1970, 2, 12),
            c.f == 10.5,
            c.f.is_in([10.5, 11.5]),
        ]
        wide = [
            c.id.is_null(),
            c.id.is_not_null() & (c.plain == 1),
            c.id.is_in([42, None]),
            c.id.is_in([42, None], nulls_equal=True),
            ~c.id.is_in([42, 4242]),
            c.id != 42,
            c.id.eq_missing(42),
            c.id.eq_missing(None),
            c.dec == Decimal("0.42"),
            c.bin == b"\xff42",
            c.f >= 3000.0,
            c.f == NAN,
            c.flag,
            c.s.str.starts_with("key 4"),
            c.st.struct.field("x") == 42,
        ]
        return narrow, wide

    @pytest.mark.slow
    def test_narrow_filters_read_few_bytes(self, frames, counting, size):
        rows, files = frames
        narrow, wide = self.conditions()
        for condition in narrow + wide:
            result, num_bytes = run_and_count(
                counting, lambda c=condition: rows.filter(c).collect()
            )
            assert result.equals(files.filter(condition).collect()), condition
            if any(condition is narrow_condition for narrow_condition in narrow):
                assert num_bytes < size / 3, condition

    def test_joins_and_limits_return_the_right_rows(self, frames):
        import polars as pl

        rows, files = frames
        keys = pl.LazyFrame({"id": [42, 4242, -1]})
        joined = [keys.join(frame, on="id").sort("row").collect() for frame in (rows, files)]
        assert joined[0].equals(joined[1]) and joined[0].height == 2
        for frame in (rows, files):
            assert frame.head(3).filter(pl.col("row") == 1).collect().height == 1
            assert frame.filter(pl.col("plain") == 3).head(5).collect().height == 5
            assert frame.select(pl.len()).collect().item() == COUNT


FILTERS = [F("id") == 42, F("id").isin([42, 4242]), F("id").is_null(), F("plain") == 3]


class TestPyArrow:
    """Comparisons of every method with that of a plain PyArrow dataset over the same files."""

    def test_it_is_a_pyarrow_dataset(self, rows, plain):
        assert isinstance(rows, pads.Dataset)
        assert rows.schema.equals(plain.schema)
        assert rows.partition_expression.equals(plain.partition_expression)

    @pytest.mark.slow
    @pytest.mark.parametrize("filter", FILTERS, ids=str)
    def test_scans_return_the_rows_of_pyarrow(self, rows, plain, filter):
        names = ["s", "row"]
        computed = {"double": F("id") * 2, "row": F("row")}
        for columns in (None, names, computed):
            expected = plain.to_table(columns, filter)
            assert rows.to_table(columns, filter).equals(expected)
            assert pa.Table.from_batches(rows.to_batches(columns, filter)).equals(expected)
            scanner = rows.scanner(columns, filter, batch_size=50)
            expected_schema = plain.scanner(columns, filter).projected_schema
            assert scanner.projected_schema.equals(expected_schema)
            assert scanner.dataset_schema.equals(plain.schema)
            assert scanner.take([0]).equals(expected.take([0]))
            assert rows.to_pandas(columns, filter).equals(expected.to_pandas())
            assert scanner.to_reader().read_all().equals(expected)
            # `head` of PyArrow may return fewer rows of a filtered dataset, so slice its table.
            assert rows.head(1, columns, filter=filter).equals(expected.slice(0, 1))
            assert rows.take([0], columns, filter).equals(expected.take([0]))
            assert rows.filter(filter).to_table(columns).equals(expected)
        assert rows.count_rows(filter) == plain.count_rows(filter)
        assert rows.filter(filter).count_rows() == plain.count_rows(filter)
        other_filter = F("plain") < 5
        assert (
            rows.filter(filter)
            .filter(other_filter)
            .to_table()
            .equals(plain.filter(filter).filter(other_filter).to_table())
        )
        assert rows.filter(other_filter).count_rows(filter) == plain.count_rows(
            other_filter & filter
        )

    def test_scans_without_a_filter_return_all_rows(self, rows, plain):
        # Leave out the column with NaN, which does not equal itself.
        assert rows.to_table().drop("f").equals(plain.to_table().drop("f"))
        assert rows.count_rows() == COUNT
        assert rows.to_table([]).num_rows == COUNT
        assert rows.head(5).equals(plain.head(5))
        assert rows.head().equals(plain.head(5))
        assert len(rows) == COUNT
        assert rows.unindexed().to_table(["__filename", "row"]).num_rows == COUNT

    def test_counting_all_rows_reads_footers(self, rows, counting, size):
        num_rows, num_bytes = run_and_count(counting, rows.count_rows)
        assert num_rows == COUNT
        assert num_bytes < size / 3

    @pytest.mark.parametrize("few", ["id IN (42, 4242)", [("id", "in", [42, 4242])]], ids=str)
    def test_filter_takes_filters_of_any_language(self, rows, plain, few):
        expected = plain.to_table(filter=F("id").isin([42, 4242]))
        filtered = rows.filter(few)
        assert filtered.to_table().equals(expected)
        assert filtered.count_rows("plain < 7") == len(filtered) == 2
        assert filtered.take([1]).equals(expected.take([1]))
        assert pa.table(filtered).equals(expected)
        assert len(filtered.search(None).at_most) < COUNT
        assert "where" in repr(filtered)

    def test_methods_that_ignore_a_filter_refuse_it(self, rows):
        few = rows.filter("id = 42")
        calls = {
            "search_many": lambda: few.search_many("id", [42]),
            "lookup": lambda: few.lookup("id", [42]),
            "take_rows": lambda: few.take_rows([0]),
            "to_polars": few.to_polars,
        }
        for name, call in calls.items():
            with pytest.raises(InvalidArgument, match=f"^{name} does not apply"):
                call()
        polars = pytest.importorskip("polars")
        with pytest.raises(InvalidArgument, match="Polars expression"):
            rows.filter(polars.col("id") == 42)
        with pytest.raises(InvalidArgument, match="Polars expression"):
            few.to_table(filter=polars.col("id") == 42)
        with pytest.raises(FilterError):
            rows.filter("no filter")

    def test_a_filter_of_tuples_is_read_once(self, rows):
        """Later changes of the tuples do not change the filter, and iterators are read once."""
        tuples = [("id", "in", iter([42, 43]))]
        few = rows.filter(tuples)
        tuples.append(("id", "=", 42))
        assert few.count_rows() == few.count_rows() == 2

    def test_take_reads_pages(self, rows, plain, counting, size):
        numbers = [COUNT - 1, 0, ROWS, ROWS - 1, 0]
        result, num_bytes = run_and_count(counting, lambda: rows.take(numbers, ["row", "s"]))
        assert result.equals(plain.to_table(["row", "s"]).take(numbers))
        assert num_bytes < size / 3
        assert rows.take(pa.array([], pa.int64())).num_rows == 0
        with pytest.raises(InvalidArgument, match=str(COUNT)):
            rows.take([COUNT])

    @pytest.mark.slow
    @pytest.mark.parametrize("filter", FILTERS, ids=str)
    def test_fragments_return_the_rows_of_their_files(self, rows, plain, counting, size, filter):
        fragments = list(rows.get_fragments(filter))
        expected = plain.to_table(filter=filter)
        result = pa.concat_tables(
            fragment.to_table(filter=filter, schema=rows.schema) for fragment in fragments
        )
        assert result.equals(expected)
        for fragment in fragments:
            file = pads.ParquetFileFormat().make_fragment(fragment.path, pafs.LocalFileSystem())
            assert fragment.physical_schema.equals(file.physical_schema)
            # Without a filter, a fragment returns the whole file.
            assert e2e.same_tables(fragment.to_table(), file.to_table())
            assert fragment.count_rows() == ROWS
            for other_filter in (filter, F("id") == 42, F("id") == -1):
                assert fragment.count_rows(filter=other_filter) == file.count_rows(
                    filter=other_filter
                )
            assert fragment.head(2, filter=filter).equals(file.to_table(filter=filter).slice(0, 2))
            assert fragment.take([0], filter=filter).equals(file.take([0], filter=filter))
            batches = list(fragment.to_batches(columns=["s"], filter=filter))
            assert sum(map(len, batches)) == file.count_rows(filter=filter)

    def test_fragments_without_a_row_are_left_out(self, rows, plain):
        assert list(rows.get_fragments(F("id") == -1)) == []
        fragments = list(rows.get_fragments(F("id") == 42))
        assert [fragment.path.endswith("part-000.parquet") for fragment in fragments] == [True]
        paths = [fragment.path for fragment in rows.get_fragments()]
        assert [path.rpartition("/")[2] for path in paths] == [
            f"part-{number:03d}.parquet" for number in range(FILES)
        ]
        with pytest.raises(InvalidArgument, match="leaves out"):
            rows.filter(F("id") == 42).get_fragments()
        with pytest.raises(InvalidArgument, match="schema"):
            fragments[0].to_table(pa.schema([("id", pa.int32())]), filter=F("id") == 42)

    def test_write_dataset_writes_the_filtered_rows(self, rows, tmp_path):
        few = rows.filter(F("id").isin([42, 77]))
        pads.write_dataset(few, tmp_path / "few", format="parquet")
        assert pads.dataset(tmp_path / "few").count_rows() == 2

    def test_code_below_the_methods_fails(self, folder, plain):
        """Every way to the C++ object raises an error that names `unindexed`."""
        # The joins of PyArrow do not support all types.
        schema = pa.schema([plain.schema.field(name) for name in ("row", "id", "plain")])
        rows, plain = zb.dataset(folder, schema=schema), pads.dataset(folder, schema=schema)
        keys = pads.dataset(pa.table({"row": [42]}))
        times = pads.dataset(pa.table({"at": [10], "plain": [1]}))
        narrow = pa.schema([schema.field("id")])
        few = rows.filter(F("id") == 42)
        for dataset in (rows, few):
            calls = [
                lambda dataset=dataset: pads.Scanner.from_dataset(dataset).to_table(),
                lambda dataset=dataset: pads.Scanner.from_dataset(dataset).count_rows(),
                lambda dataset=dataset: pads.dataset([dataset, plain]).to_table(),
                lambda dataset=dataset: pads.dataset([plain, dataset]).count_rows(),
                lambda dataset=dataset: dataset.children[0].to_table(),
                lambda dataset=dataset: next(dataset.children[0].get_fragments()).to_table(),
                lambda dataset=dataset: pads.UnionDataset.scanner(dataset).head(1),
                lambda dataset=dataset: keys.join(dataset, "row").to_table(),
                lambda dataset=dataset: dataset.join(keys, "row").to_table(),
                lambda dataset=dataset: dataset.join_asof(times, "row", "plain", 5, "at"),
                lambda dataset=dataset: dataset.sort_by("row").to_table(),
                lambda dataset=dataset: dataset.replace_schema(schema).to_table(),
                lambda dataset=dataset: dataset.replace_schema(narrow).count_rows(),
            ]
            for call in calls:
                with pytest.raises(OSError, match="unindexed"):
                    call()
        both = pads.dataset([rows.unindexed(), plain])
        assert both.count_rows() == 2 * COUNT
        assert few.unindexed().to_table().num_rows == 1
        assert few.unindexed().sort_by("row").to_table().num_rows == 1
        assert rows.unindexed().join(keys, "row", join_type="inner").count_rows() == 1

    def test_unsupported_arguments_are_refused(self, rows):
        with pytest.raises(InvalidArgument, match="fragment_scan_options"):
            options = pads.ParquetFragmentScanOptions()
            rows.to_table(filter=F("id") == 42, fragment_scan_options=options)
        (fragment,) = rows.get_fragments(F("id") == 42)
        for source in (rows, rows.filter(F("id") == 42), fragment):
            for method in (source.scanner, source.to_table, source.to_batches, source.count_rows):
                for filter in (None, F("id") == 42):
                    with pytest.raises(TypeError, match="'where'"):
                        method(filter=filter, where="id = 42")
            for method in (source.head, source.take):
                with pytest.raises(TypeError, match="'where'"):
                    method([1] if method == source.take else 1, where="id = 42")
        with pytest.raises(ColumnNotFound, match="nothing"):
            rows.to_table(["nothing"], F("id") == 42)
        with pytest.raises(FilterError, match="nothing"):
            rows.to_table(filter=F("nothing") == 42)


class TestStates:
    """Datasets over other sources, and datasets whose files change."""

    def test_partitions_are_filtered(self, tmp_path):
        rows = pa.concat_tables([table(0), table(ROWS)])
        partitioning = pads.partitioning(pa.schema([("plain", pa.int64())]), flavor="hive")
        pads.write_dataset(rows, tmp_path / "t", format="parquet", partitioning=partitioning)
        ds = zb.dataset(tmp_path / "t")
        e2e.build(ds, "id", number_of_items=ZONE)
        arrow = ds
        plain = pads.dataset(tmp_path / "t", partitioning="hive")
        for filter in (F("id") == 42, F("plain") == 3, (F("plain") == 0) & (F("id") == 42)):
            expected = plain.to_table(filter=filter).sort_by("row")
            assert arrow.to_table(filter=filter).sort_by("row").equals(expected)
            tables = [fragment.to_table(filter=filter) for fragment in arrow.get_fragments(filter)]
            assert pa.concat_tables(tables).sort_by("row").equals(expected)

    def test_missing_files_are_left_out_by_all_methods(self, tmp_path):
        paths = e2e.write_files(tmp_path / "t", [table(0), table(ROWS)])
        ds = zb.dataset(tmp_path / "t", stale="ignore-missing")
        strict = zb.dataset(tmp_path / "t")
        os.remove(paths[0])
        with pytest.warns(ZoneBloomWarning):
            assert ds.unindexed().count_rows() == ROWS
        assert sum(fragment.count_rows() for fragment in ds.get_fragments()) == ROWS
        with pytest.raises(FragmentUnreadable, match="refresh"):
            strict.unindexed()

    def test_fragments_keep_their_files_after_a_refresh(self, tmp_path):
        e2e.write_files(tmp_path / "t", [table(0), table(ROWS)])
        ds = zb.dataset(tmp_path / "t")
        e2e.build(ds, "id", number_of_items=ZONE)
        fragments = ds.get_fragments(F("id") == 42)
        opened = ds.opened
        pq.write_table(table(2 * ROWS), tmp_path / "t" / "a.parquet")
        ds.refresh()
        (fragment,) = fragments
        assert fragment._opened is opened
        assert fragment.count_rows(filter=F("id") == 42) == 1


class TestLeaves:
    """Leaves of structs as columns: they have the name by which they are indexed and filtered."""

    @pytest.fixture
    def nested(self, tmp_path):
        clients = [
            None if n % 7 == 0 else {"ip": f"10.0.0.{n}", "at": {"port": n}} for n in range(50)
        ]
        rows = pa.table({"n": range(50), "client": clients, "a.b": range(50)})
        pq.write_table(rows, tmp_path / "rows.parquet")
        ds = zb.dataset(tmp_path)
        e2e.build(ds, "client.ip", number_of_items=10)
        return ds

    def test_leaves_are_read_by_scans_takes_and_lookups(self, nested):
        names = ["client.ip", "n", "client.at.port", "a.b"]

        def expected(numbers):
            return [
                {
                    "client.ip": None if n % 7 == 0 else f"10.0.0.{n}",
                    "n": n,
                    "client.at.port": None if n % 7 == 0 else n,
                    "a.b": n,
                }
                for n in numbers
            ]

        assert nested.to_table(names).to_pylist() == expected(range(50))
        found = nested.to_table(names, '"client"."ip" = \'10.0.0.8\'')
        assert found.to_pylist() == expected([8])
        assert found.schema.names == names
        assert nested.scanner(names).schema.names == names
        assert nested.take([7, 3], names).to_pylist() == expected([7, 3])
        assert nested.take_rows([7, 3], names).to_pylist() == expected([7, 3])
        rows = nested.lookup("client.ip", ["10.0.0.9", "10.0.0.8"], names)
        assert rows.schema.field("key_index").nullable is False
        assert rows.column("key_index").to_pylist() == [1, 0]
        assert rows.drop_columns("key_index").to_pylist() == expected([8, 9])

    @pytest.mark.parametrize("columns", [None, ["key_index", "st.x"]])
    def test_lookups_return_one_column_named_key_index(self, columns):
        ds = zb.dataset(pa.table({"key_index": [7, 8], "st": [{"x": 1}, {"x": 2}]}))
        for column, keys in [("key_index", [8]), (["key_index"], {"key_index": [8]})]:
            with pytest.raises(InvalidArgument, match="'key_index'"):
                ds.lookup(column, keys, columns)
            found = ds.lookup(column, keys, ["st"])
            assert found.to_pylist() == [{"key_index": 0, "st": {"x": 2}}]

    def test_inner_structs_are_read(self, nested):
        table = nested.to_table(["client.at"], "n IN (7, 8)")
        assert table.to_pylist() == [{"client.at": None}, {"client.at": {"port": 8}}]

    def test_names_that_are_no_leaf_are_refused(self, nested):
        for name in ("client.nothing", "nothing.ip", "n.x"):
            for read in (nested.to_table, lambda names: nested.lookup("n", [1], names)):
                with pytest.raises(ColumnNotFound, match=name):
                    read([name])
