"""Tables whose files have other columns or types use their indices, whichever file comes first.

The oracle is Spark without an index, and without its own Parquet filters.
"""

from __future__ import annotations

import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.spark_data import enabled, files_read, rows, settings

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.errors import StaleIndexWarning, UnsupportedType

ROWS = 300
pytestmark = [
    pytest.mark.filterwarnings("ignore::zonebloom.errors.StaleIndexWarning"),
    pytest.mark.usefixtures("no_pushdown"),
]


def write(folder, tables):
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")


def check(spark, frame, text):
    """Compare the rows of a filter with those of Spark alone. Return the number of files read."""
    expected = rows(frame.where(text))
    with enabled(spark):
        found = frame.where(text)
        assert rows(found) == expected, text
    return sum(files_read(found))


@pytest.mark.parametrize("new_first", [False, True])
def test_a_column_that_was_added_to_the_table(spark, tmp_path, new_first):
    names = ["0", "1", "2"] if new_first else ["2", "1", "0"]
    folder = tmp_path / "t"
    new = [
        pa.table(
            {"id": range(n * ROWS, (n + 1) * ROWS), "code": [f"c{n}-{i}" for i in range(ROWS)]}
        )
        for n in range(2)
    ]
    old = pa.table({"id": range(2 * ROWS, 3 * ROWS)})
    write(folder, dict(zip(names, [*new, old], strict=True)))
    zb.dataset(folder, schema="union").create_scalar_index(["id", "code"], spark=False)
    spark.sql(f"CREATE TABLE evolved (id bigint) USING parquet LOCATION '{folder}'")
    try:
        spark.sql("ALTER TABLE evolved ADD COLUMNS (code string)")
        frame = spark.table("evolved")
        assert check(spark, frame, "code = 'c1-7'") == 1
        assert check(spark, frame, "id = 7") == 1
        assert check(spark, frame, "code IS NULL AND id > 0") >= 1
        assert check(spark, frame, "code = 'c9'") == 0
        # An old file that sorts first does not stop the index.
        write(folder, {"-old": pa.table({"id": [7, 9]})})
        spark.catalog.refreshTable("evolved")
        assert check(spark, frame, "code = 'c1-7'") == 2
        assert check(spark, frame, "id = 7") == 2
        expected = spark.table("evolved").where("code = 'c1-7'").collect()
        assert zs.scan(spark, str(folder), filter="code = 'c1-7'").collect() == expected
        assert zs.scan(spark, str(folder), columns=["code"]).count() == 3 * ROWS + 2
        [located] = zs.tag_location(frame.where("code = 'c1-7'"), folder, "code").collect()
        assert located.path.endswith(f"{names[1]}.parquet") and located.row_offset == 7
        with pytest.warns(StaleIndexWarning, match=r'-old.parquet lacks it.* schema="union"'):
            zb.dataset(folder).optimize.optimize_indices()
        # Writes of the session refresh it all the same.
        zs.enable(spark, maintain=True)
        spark.sql("INSERT INTO evolved VALUES (-1, 'c1-7')")
        zs.disable(spark)
        zs.enable(spark)
        assert check(spark, spark.table("evolved"), "code = 'c1-7'") == 2
    finally:
        zs.disable(spark)
        spark.sql("DROP TABLE evolved")


def test_a_managed_index_of_a_column_that_old_files_lack(spark, tmp_path):
    folder = tmp_path / "t"
    write(folder, {"0": pa.table({"id": [1]}), "1": pa.table({"id": [2], "code": ["c"]})})
    with settings(spark, **{"zonebloom.system.path": str(tmp_path / "managed")}):
        manager = zs.IndexManager(spark)
        manager.create_index(str(folder), zs.BFIndexConfig("by_code", ["code"]))
        write(folder, {"-old": pa.table({"id": [3]})})
        manager.refresh_index("by_code", "incremental")
        frame = spark.read.schema("id bigint, code string").parquet(str(folder))
        found = manager.apply(frame).where("code = 'c'")
        assert [row.id for row in found.collect()] == [2] and files_read(found) == [1]


TYPES = [
    (pa.int32(), pa.int64(), "bigint", [5, ROWS + 5, 10**12 + 5, -1]),
    (pa.int64(), pa.int32(), "bigint", [5, ROWS + 5, 10**12 + 5, -1]),
    (pa.uint32(), pa.int64(), "bigint", [5, ROWS + 5, 10**12 + 5, -5]),
    (pa.uint8(), pa.int16(), "smallint", [5, 300, -5]),
]


@pytest.mark.parametrize(("first", "second", "spark_type", "values"), TYPES)
def test_integers_of_two_widths(spark, tmp_path, first, second, spark_type, values):
    def table(type_, numbers):
        return pa.table({"id": pa.array([n for n in numbers if fits(n, type_)], type_)})

    def fits(number, type_):
        bits = type_.bit_width
        low = 0 if pa.types.is_unsigned_integer(type_) else -(2 ** (bits - 1))
        return low <= number < low + 2**bits

    folder = tmp_path / "t"
    write(folder, {"0": table(first, range(200)), "1": table(second, [*range(ROWS), *values])})
    zb.dataset(folder, schema="union").create_scalar_index("id", spark=False)
    frame = spark.read.schema(f"id {spark_type}").parquet(str(folder))
    for value in values:
        check(spark, frame, f"id = {value}")
        check(spark, frame, f"id IN ({value}, 250)")
        check(spark, frame, f"id >= {value}")
    assert check(spark, frame, "id = 250") == 1
    # The index is of the first type, and the file of the other type is not indexed.
    folder = tmp_path / "u"
    write(folder, {"0": table(first, range(200))})
    zb.dataset(folder).create_scalar_index("id", spark=False)
    write(folder, {"1": table(second, [*range(ROWS), *values])})
    frame = spark.read.schema(f"id {spark_type}").parquet(str(folder))
    for value in values:
        check(spark, frame, f"id = {value}")
        check(spark, frame, f"id IN ({value}, 250)")
        check(spark, frame, f"id <= {value}")
    assert check(spark, frame, "id = 199") == 2
    assert check(spark, frame, "id = 201") == 1


def test_times_of_two_units(spark, tmp_path):
    moments = [datetime.datetime(2024, 5, 1, hour, tzinfo=datetime.UTC) for hour in range(20)]
    odd = moments[0] + datetime.timedelta(microseconds=5)
    folder = tmp_path / "t"
    write(folder, {"0": pa.table({"t": pa.array(moments, pa.timestamp("ms", "UTC"))})})
    zb.dataset(folder).create_scalar_index("t", spark=False)
    write(folder, {"1": pa.table({"t": pa.array([odd], pa.timestamp("us", "UTC"))})})
    frame = spark.read.parquet(str(folder))
    assert check(spark, frame, f"t = TIMESTAMP'{odd}'") == 2
    assert check(spark, frame, "t = TIMESTAMP'2024-06-01 00:00:00Z'") == 1


def test_a_build_for_spark_refuses_int96(spark, tmp_path):
    folder = tmp_path / "t"
    with settings(spark, **{"spark.sql.parquet.outputTimestampType": "INT96"}):
        frame = spark.sql(
            "SELECT id, t, struct(t AS u) AS s "
            "FROM (SELECT id, timestamp_seconds(id) AS t FROM range(9))"
        )
        frame.write.parquet(str(folder))
    for column in ("t", "s.u"):
        for build in (
            lambda name: zb.dataset(folder).create_scalar_index(name, spark=spark),
            # A session is active.
            lambda name: zb.dataset(folder).create_scalar_index(name),
        ):
            with pytest.raises(UnsupportedType, match=r"INT96.*TIMESTAMP_MICROS.*spark=False"):
                build(column)
    zb.dataset(folder).create_scalar_index("id", spark=spark)
    zb.dataset(folder).create_scalar_index("t", spark=False)
    assert check(spark, spark.read.parquet(str(folder)), "t = timestamp_seconds(5)") >= 1
