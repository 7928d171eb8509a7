"""Test one extra where only it is installed: ``python tests/support/smoke.py EXTRA``.

Run it outside of the repository, so that Python imports the installed package.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import zonebloom as zb

HEAVY = ("numba", "pandas", "polars", "pyspark")
TABLE = pa.table({"id": range(20_000), "name": [f"name {i}" for i in range(20_000)]})
EXPECTED_ROWS = [{"id": 42, "name": "name 42"}]


def core(folder):
    script = f"import sys, zonebloom; sys.exit(bool(set({HEAVY!r}) & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", script], check=True)
    pq.write_table(TABLE, folder / "0.parquet")
    ds = zb.dataset(folder)
    ds.create_scalar_index("id", spark=False)
    assert ds.to_table(filter="id = 42").to_pylist() == EXPECTED_ROWS
    assert ds.search("id = -1").kind == "Exact"
    assert ds.validate_index("id_idx", sample="all") == 3
    return ds


def polars(folder):
    import polars as pl

    assert core(folder).to_polars().filter(pl.col("id") == 42).collect().to_dicts() == EXPECTED_ROWS


def cli(folder):
    core(folder)
    command = [str(Path(sys.executable).with_name("zonebloom")), "lookup", str(folder), "id = 42"]
    process = subprocess.run([*command, "--output=csv"], check=True, capture_output=True, text=True)
    assert process.stdout.splitlines() == ['"id","name"', '42,"name 42"']


def spark(folder):
    from pyspark.sql import SparkSession

    from zonebloom.spark import scan

    session = SparkSession.builder.master("local[1]").getOrCreate()
    core(folder).create_scalar_index("name", spark=session)
    rows = scan(session, str(folder), filter="name = 'name 42'").collect()
    assert [row.asDict() for row in rows] == EXPECTED_ROWS


def connect(folder):
    import pyspark.sql.connect.session  # noqa: F401

    core(folder)


def delta(folder):
    from deltalake import DeltaTable, write_deltalake

    write_deltalake(folder, TABLE)
    check(zb.dataset(DeltaTable(folder)))


def iceberg(folder):
    # Creating a table needs a catalog, whose packages are not part of the extra.
    import pyiceberg.io.pyarrow
    import pyiceberg.table  # noqa: F401

    core(folder)


def check(ds):
    ds.create_scalar_index("id", spark=False)
    assert ds.to_table(filter="id = 42").to_pylist() == EXPECTED_ROWS


def encryption(folder):
    pq.write_table(TABLE, folder / "0.parquet")
    check(zb.dataset(folder, encryption=zb.Encryption("k", {"k": b"0" * 16})))


def lance(folder):
    import lance as library

    data, lake = folder / "data", folder / "lake.lance"
    data.mkdir()
    ds = core(data)
    ds.index_to_lance("id_idx", str(folder / "index"))
    library.write_dataset(TABLE, str(lake))


def object_store(folder):
    import obstore.store

    core(folder)
    ds = zb.dataset(folder.name, filesystem=obstore.store.LocalStore(folder.parent))
    assert ds.to_table(filter="id = 42").to_pylist() == EXPECTED_ROWS


def plots(folder):
    import matplotlib

    matplotlib.use("agg")
    import zonebloom.plots

    ds = core(folder)
    assert zonebloom.plots and ds


def demo(folder):
    command = [str(Path(sys.executable).with_name("zonebloom")), "demo", "--path", str(folder)]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "rows updated   1" in process.stdout
    assert "DIFFER" not in process.stdout


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        globals()[sys.argv[1].replace("-", "_")](Path(folder))
    print(f"{sys.argv[1]}: zonebloom {zb.__version__}, Python {sys.version.split()[0]}: passed")
