"""Imports, lookups and builds load and compile no more than needed, each in a fresh process."""

from __future__ import annotations

import importlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.helpers import run_python

import zonebloom

HEAVY = ["numba", "llvmlite", "pyspark", "polars", "lance", "pandas", "sqlglot", "pyarrow.dataset"]

# A dataset is a pyarrow.dataset.Dataset, and PyArrow's module imports pandas.
HEAVY_FOR_DATASETS = [name for name in HEAVY if name not in ("pandas", "pyarrow.dataset")]

LOADED = f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"

BUILD = """
    import json, sys
    import zonebloom as zb

    ds = zb.dataset(sys.argv[1])
    ds.create_scalar_index(["id", "name"], "BLOOMFILTER", spark=False)

    # Every kernel of every module of ours that is loaded.
    kernels = {
        f"{module}.{name}": value
        for module, loaded in list(sys.modules.items()) if module.startswith("zonebloom.")
        for name, value in vars(loaded).items()
        if hasattr(value, "stats") and value.signatures
    }
    print(json.dumps({
        name: [sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()),
               len(kernel.signatures)]
        for name, kernel in kernels.items()
    }))
"""

KERNELS = {
    "check",
    "check_filters",
    "hash_offsets",
    "hash_stride",
    "hash_width_1",
    "hash_width_2",
    "hash_width_4",
    "hash_width_8",
    "insert",
    "insert_zones",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write a folder of two small files."""
    folder = tmp_path_factory.mktemp("data")
    for number in range(2):
        ids = range(number * 20_000, (number + 1) * 20_000)
        table = pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{i}" for i in ids]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=10_000)
    return folder


@pytest.fixture(scope="module")
def indexed(folder):
    """Return the same folder with an index that another process built."""
    run_python(BUILD, folder)
    return folder


def test_importing_the_package_loads_no_other_packages_and_three_modules():
    output = run_python(
        """
        import json, sys
        before = set(sys.modules)
        import zonebloom

        print(json.dumps(sorted(set(sys.modules) - before)))
        """
    )
    loaded = json.loads(output)
    own = [name for name in loaded if name.startswith("zonebloom.")]
    assert own == ["zonebloom.base", "zonebloom.base.version", "zonebloom.errors"]
    assert [name for name in loaded if name.startswith(("pyarrow", "numpy"))] == []


@pytest.mark.many
@pytest.mark.parametrize("name", zonebloom.__all__)
def test_each_public_name_can_be_the_first_that_is_imported(name):
    output = run_python(f"from zonebloom import {name} as value\nprint(value.__name__)")
    assert output.strip() == ("zonebloom.errors" if name == "errors" else name)


PUBLIC_MODULES = ["results", "plots", "spark", "exchange.lance"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_each_public_module_can_be_the_first_that_is_imported(name):
    output = run_python(f"import zonebloom.{name} as module\nprint(module.__name__)")
    assert output.strip() == f"zonebloom.{name}"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'zonebloom' has no attribute 'datset'"):
        zonebloom.datset  # noqa: B018


@pytest.mark.parametrize("name", ["", ".results", ".plots", ".spark"])
def test_only_public_names_are_listed(name):
    module = importlib.import_module(f"zonebloom{name}")
    assert dir(module) == sorted(module.__all__)
    assert all(getattr(module, name) is not None for name in dir(module))


LOOKUPS = {
    "= literal": 'ds.to_table(filter="id = 31000")',
    "IN literals": 'ds.to_table(["id", "name"], "id IN (31000, -1)")',
    "text": """ds.to_table(filter="name = 'n31000'")""",
    "by key": 'ds.lookup("id", [31000]).drop_columns("key_index")',
    "by text": 'ds.lookup("name", ["n31000"]).drop_columns("key_index")',
}


@pytest.mark.slow
@pytest.mark.parametrize("form", LOOKUPS)
def test_a_point_lookup_loads_nothing_heavy(indexed, form):
    output = run_python(
        f"""
        import json, sys
        import zonebloom as zb
        from zonebloom.sbbf.kernel_loader import KERNELS

        # On a busy machine, the thread that loads kernels would be quicker than the lookup.
        KERNELS.in_background = False
        ds = zb.dataset(sys.argv[1])
        rows = {LOOKUPS[form]}.to_pylist()
        print(json.dumps([rows, [name for name in {HEAVY_FOR_DATASETS!r} if name in sys.modules]]))
        """,
        indexed,
    )
    assert json.loads(output) == [[{"id": 31_000, "name": "n31000"}], []]


@pytest.mark.parametrize("arguments", [["id = 31000"], ["name = 'n31000'"], ["--key", "id=31000"]])
def test_a_lookup_of_the_command_loads_nothing_heavy(indexed, arguments):
    output = run_python(
        f"""
        import json, sys
        from zonebloom.cli.main import main

        assert main(["lookup", *sys.argv[1:]]) == 0
        {LOADED}
        """,
        indexed,
        *arguments,
    )
    *table_lines, loaded = output.splitlines()
    assert [line.split() for line in table_lines] == [["id", "name"], ["31000", "n31000"]]
    assert json.loads(loaded) == []


@pytest.mark.slow
def test_a_build_compiles_nothing_if_another_process_has_built_before(indexed):
    counts = json.loads(run_python(BUILD, indexed))
    assert {name.rpartition(".")[2] for name in counts} >= KERNELS
    for name, (hits, misses, signatures) in counts.items():
        assert misses == 0, f"{name} was compiled"
        assert hits == signatures, name


@pytest.mark.slow
def test_warmup_loads_every_kernel():
    output = run_python(
        """
        import json, sys
        import zonebloom as zb

        zb.warmup()
        blocks, xxh64 = (sys.modules[f"zonebloom.sbbf.{name}"] for name in ("blocks", "xxh64"))
        print(json.dumps(sorted(
            name for module in (blocks, xxh64) for name, value in vars(module).items()
            if getattr(value, "signatures", None)
        )))
        """
    )
    assert set(json.loads(output)) >= KERNELS
