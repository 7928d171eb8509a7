"""The jar makes applications without Python on the driver skip files, and never changes rows.

Each test runs ``spark-sql``, the command line of Spark, in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

import zonebloom as zb
from zonebloom.spark.jar.__main__ import write_jar

FILES, ROWS = 6, 1_000
SPARK_HOME = Path(pyspark.__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lake") / "fact"
    folder.mkdir()
    for number in range(FILES):
        ids = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
        pq.write_table(pa.table({"id": ids, "x": ids}), folder / f"{number}.parquet")
    zb.dataset(str(folder)).create_scalar_index("id", spark=False)
    pq.write_table(pa.table({"id": pa.array([7, 5_007, None], pa.int64())}), f"{folder}_keys")
    return folder


@pytest.fixture(scope="module")
def jar(spark, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("jar") / "zonebloom.jar"
    write_jar(spark, str(path))
    return path


def run_sql(jar: Path, folder: Path, directory: Path, **conf: str) -> subprocess.CompletedProcess:
    """Run statements with the jar, and return their output."""
    lookup = f"FROM parquet.`{folder}` WHERE id = 4242"
    join = f"FROM parquet.`{folder}` JOIN parquet.`{folder}_keys` USING (id)"
    statements = [
        f"EXPLAIN SELECT x {lookup}",
        f"SELECT 'lookup', count(*), sum(x) {lookup}",
        f"EXPLAIN SELECT x {join}",
        f"SELECT 'join', count(*), sum(x) {join}",
    ]
    settings = {
        "spark.jars": str(jar),
        "spark.sql.extensions": "zonebloom.Extensions",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        "spark.zonebloom.minJoinScanBytes": "0",
        **{name.replace("_", "."): value for name, value in conf.items()},
    }
    options = [text for item in settings.items() for text in ("--conf", "=".join(item))]
    command = [str(SPARK_HOME / "bin" / "spark-sql"), "--master", "local[1]", *options]
    done = subprocess.run(
        [*command, "-e", "; ".join(statements)],
        env={**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_jar_skips_files_without_python_on_the_driver(jar, folder, tmp_path):
    output = run_sql(jar, folder, tmp_path, spark_zonebloom_python=sys.executable).stdout
    assert "lookup\t1\t4242" in output
    assert "join\t2\t5014" in output
    assert f"zonebloom: 1 of {FILES} files by id_idx" in output
    assert f"zonebloom: 2 of {FILES} files by id_idx" in output


def test_all_files_are_read_without_a_service(jar, folder, tmp_path):
    done = run_sql(jar, folder, tmp_path, spark_zonebloom_python="/no/such/python")
    assert "lookup\t1\t4242" in done.stdout
    assert "join\t2\t5014" in done.stdout
    assert "zonebloom: all files; the index was not asked" in done.stdout
    assert "Spark reads all files of a scan" in done.stderr


def test_equal_texts_give_an_equal_jar(spark, jar, tmp_path):
    write_jar(spark, str(tmp_path / "again.jar"))
    assert (tmp_path / "again.jar").read_bytes() == jar.read_bytes()
    assert list(tmp_path.iterdir()) == [tmp_path / "again.jar"]
