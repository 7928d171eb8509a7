"""filter_join returns the rows of Spark's own join, and shuffles fewer rows."""

from __future__ import annotations

import datetime
import re
import warnings
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as sf
from support.joined import explain_join
from support.seams import set_constant
from support.spark_data import files_read, rows, settings, shuffled_rows

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.errors import (
    ColumnNotFound,
    IndexNotUsedWarning,
    InvalidArgument,
)
from zonebloom.sbbf.filter import Sbbf
from zonebloom.spark.joins import global_filter
from zonebloom.spark.joins.sides import RuleNotUsed

NAN = float("nan")


DAY = datetime.date(2024, 3, 1)
INSTANT = datetime.datetime(2024, 3, 1, 12, tzinfo=datetime.UTC)
LEFT_ROWS = 1_500


def stored_table(number, rows=400):
    """Return one file of the indexed side. Keys of all files overlap, and some are null."""
    dice = np.random.default_rng(number)
    keys = dice.integers(number * 90, number * 90 + 150, rows)
    odd = [NAN, 0.0, -0.0, float("inf")]

    def some(values):
        return [None if dice.random() < 0.04 else value for value in values]

    return pa.table(
        {
            "id": pa.array(some(map(int, keys)), pa.int32()),
            "big": pa.array(some(int(i) + 2**33 for i in keys), pa.int64()),
            "name": pa.array(some(f"n{i}" for i in keys)),
            "x": pa.array(some(odd[i % 31] if i % 31 < 4 else i / 4 for i in keys), pa.float64()),
            "dec": pa.array(some(Decimal(int(i)) / 4 for i in keys), pa.decimal128(10, 2)),
            "d": pa.array(some(DAY + datetime.timedelta(int(i)) for i in keys), pa.date32()),
            "t": pa.array(
                some(INSTANT + datetime.timedelta(hours=int(i)) for i in keys),
                pa.timestamp("us", "UTC"),
            ),
            "b": pa.array(some(str(i).encode() for i in keys), pa.binary()),
            "row": pa.array(np.arange(rows) + number * rows, pa.int64()),
        }
    )


KEYS = ["id", "big", "name", "x", "dec", "d", "t", "b"]
LOOKED_UP = ["id", "big", "name", "d", "t", "b"]


def write(folder, numbers=range(3)):
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        pq.write_table(
            stored_table(number),
            folder / f"{number}.parquet",
            write_page_index=True,
            max_rows_per_page=50,
        )
    return str(folder)


def index(folder, columns=KEYS, **options):
    dataset = zb.dataset(folder)
    dataset.create_scalar_index(
        columns, number_of_items=50, global_filter=True, spark=False, **options
    )
    return dataset


NO_BROADCASTS = {"spark.sql.autoBroadcastJoinThreshold": "-1"}


@pytest.fixture(scope="module", autouse=True)
def worth_it(spark):
    """Make the sides count as large enough for the global filter."""
    with settings(spark, **NO_BROADCASTS):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = write(tmp_path_factory.mktemp("stored") / "data")
    index(path)
    return path


@pytest.fixture(scope="module")
def oracle(spark, folder):
    return spark.read.parquet(folder)


@pytest.fixture(scope="module")
def other_frame(spark):
    """Return a frame with nulls and duplicates. About a third of its rows have a match."""
    table = pa.concat_tables([stored_table(7, LEFT_ROWS), stored_table(2, 300), stored_table(30)])
    other = table.rename_columns([*table.column_names[:-1], "other"])
    return spark.createDataFrame(other).repartition(2).cache()


HOWS = ["inner", "left_semi", "left", "right"]


def cases(columns):
    """Return all kinds of joins for the first column, and one kind for each other column."""
    other_cases = [(column, HOWS[i % 4]) for i, column in enumerate(columns[1:])]
    return [(columns[0], join_type) for join_type in HOWS] + other_cases


@pytest.mark.parametrize(("column", "join_type"), cases(LOOKED_UP))
def test_filter_rule_gives_the_rows_of_the_join(
    spark, folder, oracle, other_frame, column, join_type
):
    """The keys of the indexed side may filter the other side."""
    stored, other = oracle.select(column, "row"), other_frame.select(column, "other")
    sides = (stored, other) if join_type == "left" else (other, stored)
    which = "left_index" if join_type == "left" else "right_index"
    plan = explain_join(*sides, column, join_type, **{which: folder})
    assert len(plan.used) == 1, plan
    assert rows(plan.frame) == rows(sides[0].join(sides[1], column, join_type))


def test_composite_keys_give_the_rows_of_the_join(spark, folder, oracle, other_frame):
    """Only some key columns are looked up in the index; the join compares all of them."""
    plan = explain_join(other_frame, oracle, ["id", "x", "dec"], right_index=folder)
    assert [sentence.split(" whose ")[1][:3] for sentence in plan.used] == ["id "]
    assert rows(plan.frame) == rows(other_frame.join(oracle, ["id", "x", "dec"]))


def test_names_in_another_case_give_the_rows_of_the_join(spark, folder, oracle, other_frame):
    result = zs.filter_join(other_frame.select("ID", "other"), oracle, "Id", right_index=folder)
    assert rows(result) == rows(other_frame.select("ID", "other").join(oracle, "Id"))


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_integers_of_other_widths_give_the_rows_of_the_join(spark, folder, oracle, ansi):
    """A bigint that is out of range for int matches nothing, and raises no error."""
    wide = pa.array([5, 120, None, 2**31 + 5, -(2**63), 2**32 + 120, 2**63 - 1], pa.int64())
    wide_frame = spark.createDataFrame(pa.table({"id": wide, "other": range(7)}))
    narrow = wide_frame.selectExpr("try_cast(id AS smallint) AS big", "other")
    with settings(spark, **{"spark.sql.ansi.enabled": ansi}):
        frame = zs.filter_join(wide_frame, oracle, "id", right_index=folder)
        assert rows(frame) == rows(wide_frame.join(oracle, "id")) != []
        frame = zs.filter_join(narrow, oracle, "big", right_index=folder)
        assert rows(frame) == rows(narrow.join(oracle, "big")) == []


def test_only_rows_that_may_match_are_shuffled(spark, folder, oracle, other_frame):
    frame = zs.filter_join(other_frame, oracle, "id", right_index=folder)
    ids = oracle.select("id").distinct()
    matching = other_frame.join(ids, "id", "left_semi").count()
    result = frame.toArrow()
    assert result.num_rows > 0
    written = shuffled_rows(frame)
    assert len(written) == 2
    assert min(written) <= matching * 1.1 < other_frame.count() / 2


# Costs of a join


BROADCASTS = {"spark.sql.autoBroadcastJoinThreshold": "10MB"}


def test_a_small_side_is_computed_once(spark, folder):
    computed = spark.sparkContext.accumulator(0)

    def row(key: int) -> tuple[int]:
        computed.add(1)
        return (key,)

    few = spark.createDataFrame(spark.sparkContext.parallelize([3, 5], 1).map(row), "id int")
    with settings(spark, **BROADCASTS):
        frame = zs.filter_join(few, spark.read.parquet(folder), "id", right_index=folder)
        assert len(frame.collect()) > 0
    assert files_read(frame)[-1] == 1
    assert computed.value == 2


def test_sides_that_spark_broadcasts_are_not_filtered(spark, folder, oracle, other_frame):
    """The plan gives no warning, because nothing is wrong."""
    with settings(spark, **BROADCASTS), warnings.catch_warnings():
        warnings.simplefilter("error")
        large_side = spark.range(4_000_000).selectExpr("CAST(id AS int) AS id", "id AS other")
        plan = explain_join(large_side, oracle, "id", right_index=folder)
        assert not plan.used
        plan = explain_join(other_frame, oracle, "id", right_index=folder)
        frame = zs.filter_join(other_frame, oracle, "id", right_index=folder)
    assert not plan.used
    assert "LeftSemi" not in frame._jdf.queryExecution().optimizedPlan().toString()
    assert rows(frame) == rows(other_frame.join(oracle, "id"))


# Files that changed


def changed(spark, folder, column="id"):
    """Return the rows of a join with a stale index, and those of Spark's own join."""
    other_side = spark.range(2_000).select(sf.col("id").cast("int").alias("id"))
    stored = spark.read.parquet(folder)
    plan = explain_join(other_side, stored, column, right_index=folder)
    assert rows(plan.frame) == rows(other_side.join(stored, column))
    return plan


def test_files_that_are_newer_than_the_index_are_added_to_the_filter(spark, tmp_path):
    folder = write(tmp_path / "data")
    index(folder, ["id"])
    before = changed(spark, folder)
    assert "not indexed yet" not in before.used[0]
    pq.write_table(stored_table(15), tmp_path / "data" / "new.parquet")
    plan = changed(spark, folder)
    assert "with 400 rows of 1 file that are not indexed yet" in plan.used[0]
    assert plan.frame.where("id >= 1350").count() > 0
    zb.dataset(folder).optimize.optimize_indices()
    assert "added" not in changed(spark, folder).used[0]


def test_changed_and_deleted_files_lose_no_rows(spark, tmp_path):
    folder = write(tmp_path / "data")
    index(folder, ["id"])
    pq.write_table(stored_table(12, 333), tmp_path / "data" / "1.parquet")
    plan = changed(spark, folder)
    assert "333 rows of 1 file" in plan.used[0]
    (tmp_path / "data" / "1.parquet").unlink()
    assert "added" not in changed(spark, folder).used[0]


def test_a_filter_too_stale_is_not_used(spark, tmp_path, monkeypatch):
    folder = write(tmp_path / "data")
    index(folder, ["id"])
    pq.write_table(stored_table(15), tmp_path / "data" / "new.parquet")
    other_side = spark.range(2_000).select(sf.col("id").cast("int").alias("id"))
    stored = spark.read.parquet(folder)
    set_constant(monkeypatch, global_filter, "_MAX_MISSING_ROWS", 399)
    with pytest.warns(IndexNotUsedWarning, match="400 rows came or changed .*, more than 399"):
        frame = zs.filter_join(other_side, stored, "id", right_index=folder)
    assert rows(frame) == rows(other_side.join(stored, "id"))


def test_a_new_file_of_another_type_is_no_reason_to_lose_rows(spark, tmp_path):
    folder = write(tmp_path / "data")
    index(folder, ["id"])
    other = stored_table(15).set_column(0, "id", stored_table(15)["id"].cast(pa.string()))
    pq.write_table(other, tmp_path / "data" / "new.parquet")
    other_side = spark.range(2_000).select(sf.col("id").cast("int").alias("id"))
    stored = spark.read.parquet(str(tmp_path / "data" / "0.parquet"))
    with pytest.warns(IndexNotUsedWarning, match="cannot be added"):
        frame = zs.filter_join(other_side, stored, "id", right_index=folder)
    assert rows(frame) == rows(other_side.join(stored, "id"))


def test_a_dataset_that_lacks_newer_files_of_the_frame_is_not_used(spark, tmp_path):
    folder = write(tmp_path / "data dir")
    opened = index(folder, ["id"])
    other_side = spark.range(2_000).select(sf.col("id").cast("int").alias("id"))
    stored = spark.read.parquet(folder)
    assert explain_join(other_side, stored, "id", right_index=opened).used
    pq.write_table(stored_table(15), tmp_path / "data dir" / "new file.parquet")
    stored = spark.read.parquet(folder)
    with pytest.warns(
        IndexNotUsedWarning, match=r"new file.parquet, which is not a file of the dataset"
    ):
        frame = zs.filter_join(other_side, stored, "id", right_index=opened)
    assert rows(frame) == rows(other_side.join(stored, "id"))


# Joins without rules


@pytest.mark.parametrize(
    ("column", "cast", "message"),
    [
        ("x", "x", "0.0 and -0.0"),
        ("dec", "dec", "other bytes"),
        ("id", "cast(id AS string)", "after a cast"),
        ("name", "name COLLATE UTF8_LCASE", "collation"),
        ("d", "cast(d AS timestamp)", "after a cast"),
        ("id", "cast(id AS double)", "0.0 and -0.0"),
        ("row", "other", "no index"),
    ],
)
def test_keys_that_need_a_cast_are_not_looked_up(
    spark, folder, oracle, other_frame, column, cast, message
):
    other_side = other_frame.selectExpr(f"{cast} AS {column}", "other AS o")
    right = oracle
    if "COLLATE" in cast:
        right = oracle.withColumn("name", sf.expr(cast))
    with pytest.warns(IndexNotUsedWarning, match=message):
        frame = zs.filter_join(other_side, right, column, right_index=folder)
    assert rows(frame) == rows(other_side.join(right, column))


def test_an_index_without_a_global_filter_is_not_used(spark, tmp_path, other_frame):
    folder = write(tmp_path / "data")
    zb.dataset(folder).create_scalar_index("id", spark=False)
    stored = spark.read.parquet(folder)
    with pytest.warns(IndexNotUsedWarning, match="global_filter=True"):
        frame = zs.filter_join(other_frame, stored, "id", right_index=folder)
    assert rows(frame) == rows(other_frame.join(stored, "id"))


def test_too_large_or_too_full_filters_are_not_used(folder, oracle, other_frame, monkeypatch):
    keys = pa.array(np.arange(30_000), pa.int32())
    large = Sbbf(30_000, 1e-6)
    large.insert(keys)
    full = Sbbf(100, 0.5)
    full.insert(keys)
    for sbbf, limit, message in ((large, 1_024, "more than 1,024: give"), (full, 1 << 20, "full")):
        with pytest.raises(RuleNotUsed, match=message):
            global_filter.fit_to_memory(sbbf, limit)
    folded = global_filter.fit_to_memory(large, 70_000)
    assert large.nbytes > 70_000 and folded.nbytes == 1 << 16
    assert folded.check(keys).all()
    # A session has 1 GiB by default.
    set_constant(monkeypatch, global_filter, "_HEAP_SHARE", 1 << 30)
    with pytest.warns(IndexNotUsedWarning, match="more than 1: give spark.driver.memory"):
        frame = zs.filter_join(other_frame, oracle, "id", right_index=folder)
    assert rows(frame) == rows(other_frame.join(oracle, "id"))


@pytest.mark.parametrize("join_type", ["full", "outer", "left_anti", "anti", "cross", "nonsense"])
def test_joins_that_return_rows_without_a_match_are_refused(folder, oracle, other_frame, join_type):
    with pytest.raises(InvalidArgument, match="one of inner, left_semi, left, right"):
        zs.filter_join(other_frame, oracle, "id", join_type, right_index=folder)


@pytest.mark.parametrize(
    ("join_type", "which"), [("left", "right_index"), ("right_outer", "left_index")]
)
def test_a_filter_of_rows_that_the_join_returns_is_not_used(
    folder, oracle, other_frame, join_type, which
):
    sides = (oracle, other_frame) if which == "left_index" else (other_frame, oracle)
    with pytest.warns(IndexNotUsedWarning, match="returns every row of"):
        frame = zs.filter_join(*sides, "id", join_type, **{which: folder})
    assert rows(frame) == rows(sides[0].join(sides[1], "id", join_type))


def test_misuse_is_refused(spark, folder, oracle, other_frame):
    with pytest.raises(InvalidArgument, match="no side has an index"):
        zs.filter_join(other_frame, oracle, "id")
    with pytest.raises(InvalidArgument, match=r"right is '.*'; give a DataFrame"):
        zs.filter_join(other_frame, folder, "id")
    for on in ([], 5, None, [5]):
        with pytest.raises(InvalidArgument, match="on is"):
            zs.filter_join(other_frame, oracle, on, right_index=folder)
    for index in ([], 5, [5], b"path"):
        with pytest.raises(InvalidArgument, match=r"right_index is .*; give"):
            zs.filter_join(other_frame, oracle, "id", right_index=index)
    with pytest.raises(ColumnNotFound, match="right has no column 'nope'"):
        nope = other_frame.withColumn("nope", sf.lit(1))
        zs.filter_join(nope, oracle, "nope", right_index=folder)
    with pytest.raises(InvalidArgument, match="stream"):
        stream = spark.readStream.format("rate").load().selectExpr("value AS id")
        zs.filter_join(stream, oracle, "id", right_index=folder)


def test_cached_joins_do_not_change_other_reads(spark, folder, oracle, other_frame):
    frame = zs.filter_join(other_frame, oracle, "id", right_index=folder).cache()
    assert frame.count() == other_frame.join(oracle, "id").count()
    key = other_frame.schema["id"]
    nothing = global_filter.keep_possible_matches(other_frame, key, Sbbf(10), pa.int32())
    assert nothing.join(oracle, "id").count() == 0
    assert rows(frame) == rows(other_frame.join(oracle, "id"))
    frame.unpersist()


def keyed(spark, *values, name="id", kind="bigint"):
    return spark.createDataFrame([(value,) for value in values], f"{name} {kind}")


def indexed(folder, *columns):
    zb.dataset(folder).create_scalar_index(list(columns), spark=False, global_filter=True)


def check_aside(spark, other, frame, on, message, index):
    """Check that the rule is not used, and that the rows are those of the join."""
    plan = explain_join(other, frame, on, right_index=index)
    assert not plan.used
    assert re.search(message, str(plan)), str(plan)
    wanted = other.join(frame, on).collect()
    assert sorted(map(repr, plan.frame.collect())) == sorted(map(repr, wanted))
    return len(wanted)


def test_key_columns_in_another_case_are_not_looked_up(spark, tmp_path):
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"ID": [3, 4]}), tmp_path / "b.parquet")
    indexed(tmp_path, "id")
    other = keyed(spark, 1, 3, 9)
    frame = spark.read.schema("id bigint").parquet(str(tmp_path))
    message = r"has column 'ID' in place of 'id'"
    assert check_aside(spark, other, frame, "id", message, str(tmp_path)) == 2
    (tmp_path / "b.parquet").unlink()
    zb.dataset(tmp_path).optimize.optimize_indices(spark=False)
    pq.write_table(pa.table({"Id": [9]}), tmp_path / "c.parquet")
    frame = spark.read.schema("id bigint").parquet(str(tmp_path))
    message = r"has column 'Id' in place of 'id'"
    assert check_aside(spark, other, frame, "id", message, str(tmp_path)) == 2


def test_columns_with_a_default_are_not_looked_up(spark, tmp_path):
    spark.sql(f"CREATE TABLE filled (x BIGINT) USING parquet LOCATION '{tmp_path}/t'")
    try:
        spark.sql("INSERT INTO filled VALUES (1)")
        (old,) = (tmp_path / "t").glob("*.parquet")
        spark.sql("ALTER TABLE filled ADD COLUMN y BIGINT DEFAULT 7")
        spark.sql("INSERT INTO filled VALUES (2, 9)")
        # The dataset has the schema of its first file.
        old.rename(tmp_path / "t" / "zz.parquet")
        spark.catalog.refreshTable("filled")
        indexed(tmp_path / "t", "y")
        other = keyed(spark, 7, 9, 5, name="y")
        frame = spark.table("filled")
        assert check_aside(spark, other, frame, "y", "DEFAULT", str(tmp_path / "t")) == 2
    finally:
        spark.sql("DROP TABLE filled")


def test_partition_columns_are_not_looked_up(spark, tmp_path):
    (tmp_path / "id=7").mkdir()
    path = tmp_path / "id=7" / "a.parquet"
    pq.write_table(pa.table({"id": pa.array([1], pa.int32()), "x": [1]}), path)
    indexed([str(path)], "id")
    other = keyed(spark, 1, 7, kind="int")
    frame = spark.read.parquet(str(tmp_path))
    opened = zb.dataset([str(path)])
    assert check_aside(spark, other, frame, "id", "from the paths", opened) == 1


def test_frames_with_files_outside_the_index_lose_no_rows(spark, tmp_path):
    for name, ids in (("p", [1, 2]), ("q", [3, 4])):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"id": ids}), tmp_path / name / "a.parquet")
    indexed(tmp_path / "p", "id")
    other = keyed(spark, 1, 3)
    frame = spark.read.parquet(str(tmp_path / "p"), str(tmp_path / "q"))
    assert (
        check_aside(spark, other, frame, "id", "not a file of the dataset", str(tmp_path / "p"))
        == 2
    )
