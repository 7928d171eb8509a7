"""The data source returns the rows of ``spark.read.parquet`` in a real session."""

from __future__ import annotations

import os
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row
from support import spark_data
from support.seams import set_constant
from support.spark_data import rows

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.errors import (
    EngineError,
    FragmentChanged,
    InvalidArgument,
)
from zonebloom.scan import tasks as scan_tasks
from zonebloom.spark.load import Load, ScanRequest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return spark_data.write(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def oracle(spark, folder, no_pushdown):
    """Read with Spark itself."""
    return spark.read.parquet(folder)


def load(path, **options):
    return Load(ScanRequest(str(path), **options))


def test_unions_and_self_joins_of_one_frame(spark, folder, oracle):
    one, two = zs.scan(spark, folder, "id = 5"), zs.scan(spark, folder, "name = 'n77'")
    left, right = oracle.where("id = 5"), oracle.where("name = 'n77'")
    assert rows(one.union(two)) == rows(left.union(right))
    assert rows(two) == rows(right)
    assert rows(one) == rows(left)
    assert one.union(one).count() == 2 * left.count()
    assert one.alias("a").join(one.alias("b"), "row").count() == left.count()
    whole = zs.scan(spark, folder)
    assert rows(whole.where("id = 5").union(whole.where("id = 7"))) == rows(
        oracle.where("id = 5").union(oracle.where("id = 7"))
    )
    assert whole.count() == oracle.count()


def test_requested_columns_are_returned(spark, folder, oracle):
    wanted = oracle.where("id = 5").select("name", "ROW")
    assert rows(zs.scan(spark, folder, "id = 5", ["name", "ROW"])) == rows(wanted)
    text = "upper(name) = 'N5' AND length(b) = 4"
    assert rows(zs.scan(spark, folder, text, ["x"])) == rows(oracle.where(text).select("x"))


def test_collations_are_left_to_spark(spark, tmp_path):
    path = str(tmp_path / "t")
    spark.range(2_000).selectExpr("id", "concat('N', id) COLLATE UTF8_LCASE AS name").write.parquet(
        path
    )
    zb.dataset(path).create_scalar_index("name", number_of_items=100, spark=False)
    assert zs.scan(spark, path, "name = 'n77'").count() == 1
    plan = zs.explain(zs.scan(spark, path, "name = 'n77'")).scans[0]
    assert "it is not known how Spark compares name" in str(plan)


def test_partitioned_folders_are_read(spark, tmp_path):
    path = str(tmp_path / "t")
    frame = spark.range(3_000).selectExpr(
        "id",
        "id % 3 AS part",
        "DATE'2024-01-01' + CAST(id % 2 AS int) AS day",
        "IF(id % 5 = 0, NULL, concat('k ', id % 2)) AS kind",
        "id / 8 AS x",
    )
    frame.write.partitionBy("part", "day", "kind").parquet(path)
    zb.dataset(path).create_scalar_index("id", number_of_items=100, spark=False)
    wanted = spark.read.parquet(path)
    assert zs.scan(spark, path).schema == wanted.schema
    for text in (
        "id = 77",
        "part = 1 AND id IN (4, 5)",
        "day = DATE'2024-01-02' AND id < 9",
        "day = '2024-01-02' AND kind = 'k 1' AND id < 20",
        "kind IS NULL AND id < 40",
        "NOT (kind = 'k 1') AND id < 40",
    ):
        assert rows(zs.scan(spark, path, text)) == rows(wanted.where(text)), text


@pytest.mark.parametrize(
    "values",
    [
        ("2024-01-01 10:00:00", "2024-01-02 11:30:00.5"),
        ("2024-01-01", "2024-01-02 11:30:00"),
        ("12345678901234567890", "5"),
        ("1e5", "2e5"),
        ("NaN", "-Infinity"),
        ("2.5", "0.1234567890123456789"),
    ],
)
def test_partition_values_of_other_types_are_refused(spark, tmp_path, values):
    """Text would not equal what Spark's type equals: t = '2024-01-01 10:00' finds a timestamp."""
    for number, value in enumerate(values):
        folder = tmp_path / f"t={quote(value, safe='')}"
        folder.mkdir()
        pq.write_table(pa.table({"id": [number]}), folder / "0.parquet")
    path = str(tmp_path)
    zb.dataset(path).create_scalar_index("id", spark=False)
    assert spark.read.parquet(path).schema["t"].dataType.simpleString() != "string"
    with pytest.raises(AnalysisException, match="column 't' as numbers or timestamps"):
        zs.scan(spark, path, "id = 1")
    with pytest.raises(AnalysisException, match="column 't' as numbers or timestamps"):
        zs.scan(spark, path, "id = 1 AND t > '0'", columns=["id"])
    assert zs.scan(spark, path, "id = 1", columns=["id"]).collect() == [Row(id=1)]


@pytest.mark.parametrize(
    "values",
    [
        ("1a", "2"),
        ("2024-01-01", "5"),
        ("2024-01", "2024-02"),
        ("2024-13-45", "nan"),
        ("nan", "2"),
        ("2024-W01-1", "2024-W02-1"),
    ],
)
def test_partition_values_that_are_text_for_spark_too(spark, tmp_path, values):
    for number, value in enumerate(values):
        (tmp_path / f"t={value}").mkdir()
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"t={value}" / "0.parquet")
    path = str(tmp_path)
    zb.dataset(path).create_scalar_index("id", spark=False)
    assert zs.scan(spark, path).schema == spark.read.parquet(path).schema


def test_a_relative_index_dir_is_that_of_the_caller(spark, tmp_path, monkeypatch):
    """The data source opens the index in another process."""
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"id": range(100)}), "rows.parquet")
    zb.dataset("rows.parquet", index_dir="index").create_scalar_index("id", spark=False)
    frame = zs.scan(spark, "rows.parquet", "id = 1000", index_dir="index")
    assert "1 of 1 fragments covered" in str(zs.explain(frame))
    assert frame.count() == 0
    with pytest.raises(InvalidArgument, match="index_dir"):
        zs.scan(spark, "rows.parquet", "id = 1000", index_dir=5)


def test_scans_may_have_no_rows_or_zones(spark, folder):
    none = zs.scan(spark, folder, "id = 123456789")
    assert none.collect() == []
    assert none.count() == 0
    assert zs.explain(none).scans[0].fragments == ()


def test_many_row_groups_are_shared_by_tasks(spark, folder, oracle, monkeypatch):
    set_constant(monkeypatch, scan_tasks, "_MIN_TASK_BYTES", 4_000)
    set_constant(monkeypatch, scan_tasks, "_OPEN_BYTES", 0)
    whole = load(folder, parallelism=8)
    tasks = whole.partitions(whole.plan())
    assert len(tasks) > 3
    assert any(piece.is_shared for task in tasks for piece in task)
    sizes = [sum(piece.num_bytes for piece in task) for task in tasks]
    assert max(sizes) < 3 * (sum(sizes) / len(sizes))
    result = [
        row
        for task in tasks
        for batch in whole.reader.batches(task)
        for row in batch.column("row").to_pylist()
    ]
    assert sorted(result) == sorted(row.row for row in oracle.select("row").collect())


def test_files_that_change_between_plan_and_read_raise(tmp_path, monkeypatch):
    path = spark_data.write(tmp_path / "t", files=1)
    key = next(i for i in spark_data.table(0)["id"].to_pylist() if i is not None)
    matching, whole = load(path, filter=f"id = {key}"), load(path, parallelism=8)
    alone = matching.partitions(matching.plan())
    set_constant(monkeypatch, scan_tasks, "_MIN_TASK_BYTES", 4_000)
    set_constant(monkeypatch, scan_tasks, "_OPEN_BYTES", 0)
    shared = whole.partitions(whole.plan())
    assert not alone[0][0].is_shared
    assert shared[0][0].is_shared
    pq.write_table(pa.concat_tables([spark_data.table(9)] * 2), tmp_path / "t" / "0.parquet")
    result = [
        row for batch in matching.reader.batches(alone[0]) for row in batch["row"].to_pylist()
    ]
    table = spark_data.table(9)
    wanted = [
        row
        for row, id_ in zip(*(table[n].to_pylist() for n in ("row", "id")), strict=True)
        if id_ == key
    ]
    assert sorted(result) == sorted(wanted * 2)
    with pytest.raises(FragmentChanged, match=r"0\.parquet changed.*again"):
        list(whole.reader.batches(shared[0]))
    os.remove(tmp_path / "t" / "0.parquet")
    with pytest.raises(FragmentChanged):
        list(whole.reader.batches(shared[0]))


def test_appended_and_rewritten_files_are_read_whole(spark, tmp_path):
    path = spark_data.write(tmp_path / "t", files=2)
    pq.write_table(spark_data.table(7), tmp_path / "t" / "1.parquet")
    pq.write_table(spark_data.table(8), tmp_path / "t" / "new.parquet")
    wanted = spark.read.parquet(path).where("id IN (5, 77, 91)")
    assert rows(zs.scan(spark, path, "id IN (5, 77, 91)")) == rows(wanted)


def test_errors_say_what_to_do(spark, folder):
    with pytest.raises(AnalysisException, match=r"NoFragments: /nowhere does not exist"):
        zs.scan(spark, "/nowhere")
    with pytest.raises(AnalysisException, match=r"no column 'nope'; the dataset has row, id"):
        zs.scan(spark, folder, columns=["nope"])
    with pytest.raises(InvalidArgument, match="filter is of type Column; give Spark SQL text"):
        from pyspark.sql.functions import col

        zs.scan(spark, folder, col("id") == 5)
    for path in (5, None, [], [5], {}):
        with pytest.raises(InvalidArgument, match=r"path is .*; give"):
            zs.scan(spark, path)
    with pytest.raises(InvalidArgument, match="give a list"):
        zs.scan(spark, folder, columns="id")
    with pytest.raises(EngineError, match="give a SparkSession"):
        zs.scan("local[2]", folder)
    with pytest.raises(Exception, match=r"is read by zonebloom\.spark\.scan"):
        spark.read.format("zonebloom").load(folder)


def test_a_dataset_stands_for_its_files(spark, tmp_path, monkeypatch):
    """A glob has fewer files than its folder, and so has a dataset that was opened before."""
    for part in (1, 2):
        (tmp_path / "lake" / f"p={part}").mkdir(parents=True)
        for number in (0, 1):
            table = pa.table({"id": [part * 10 + number, 7]})
            pq.write_table(table, tmp_path / "lake" / f"p={part}" / f"{number}.parquet")
    monkeypatch.chdir(tmp_path)
    names = [f"lake/p=1/{number}.parquet" for number in (0, 1)]
    for paths in ("lake", "lake/*/0.parquet", names, f"file://{tmp_path}/lake/p=2"):
        ds = zb.dataset(paths)
        wanted = sorted(ds.to_table(["id"])["id"].to_pylist())
        assert sorted(row.id for row in zs.scan(spark, ds).collect()) == wanted
    ds = zb.dataset("lake/p=1")
    pq.write_table(pa.table({"id": [99]}), tmp_path / "lake" / "p=1" / "new.parquet")
    assert sorted(row.id for row in zs.scan(spark, ds).collect()) == [7, 7, 10, 11]
    whole = zb.dataset("lake")
    other_type = pa.schema([("id", pa.int32())])
    for other, says in (
        (ds.filter("id = 7"), "the dataset's own filter"),
        (zb.dataset(pa.table({"id": [1]})), "write it to Parquet first"),
        (zb.dataset("lake", schema=other_type), "its schema is not"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            zs.scan(spark, other)
    frames = [zs.scan(spark, whole, "id = 7") for _ in range(3)]
    assert frames[0].count() == 4
    deleted = tmp_path / "lake" / "p=2" / "1.parquet"
    deleted.rename(tmp_path / "moved")
    with pytest.raises(Exception, match=r"FragmentChanged: .*call ds\.refresh\(\)"):
        frames[1].collect()
    (tmp_path / "moved").rename(deleted)
    pq.write_table(pa.table({"id": [7]}), tmp_path / "lake" / "p=2" / "2.parquet")
    with pytest.raises(Exception, match=r"FragmentChanged: .*call ds\.refresh\(\)"):
        frames[2].collect()
    with pytest.raises(InvalidArgument, match=r"other files.*call ds\.refresh\(\)"):
        zs.scan(spark, whole)
    whole.refresh()
    assert zs.scan(spark, whole, "id = 7").count() == 5


def test_several_paths_are_read(spark, folder, oracle):
    paths = [f"{folder}/0.parquet", f"file:{folder}/2.parquet"]
    wanted = rows(oracle.where("id = 5 AND (row < 2000 OR row >= 4000)"))
    assert rows(zs.scan(spark, paths, "id = 5")) == wanted
    assert rows(zs.scan(spark, f"{folder}/[02].parquet", "id = 5")) == wanted


def test_columns_in_another_case_are_refused(spark, tmp_path):
    """Spark reads both as one column. Losing rows silently is not allowed."""
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"ID": [3, 4]}), tmp_path / "b.parquet")
    whole = spark.read.schema("id bigint").parquet(str(tmp_path))
    assert whole.where("id = 3").count() == 1
    for indexed in (False, True):
        if indexed:
            zb.dataset(tmp_path).create_scalar_index("id", spark=False)
        for text in (None, "id = 3"):
            why = r"b\.parquet has column 'ID' in place of 'id'.*prune"
            with pytest.raises(Exception, match=why):
                zs.scan(spark, tmp_path, text).collect()
    assert zs.prune(whole.where("id = 3")).count() == 1
    # If no file that is read has it, nothing is refused.
    (tmp_path / "b.parquet").unlink()
    zb.dataset(tmp_path).optimize.optimize_indices(spark=False)
    assert zs.scan(spark, tmp_path, "id = 2").count() == 1
