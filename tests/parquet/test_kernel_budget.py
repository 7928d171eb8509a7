"""Pages are read without kernels until the kernels of the installation were compiled once."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import run_python
from seams import replace_function, set_constant

from zonebloom.parquet import kernel_budget
from zonebloom.parquet.kernel_budget import KernelBudget
from zonebloom.sbbf.numpy_budget import NumpyBudget

BUILD_AND_READ = """
    import json, sys
    import zonebloom as zb

    ds = zb.dataset(sys.argv[1])
    ds.create_scalar_index("id", spark=False)
    rows = ds.to_table(filter="id IN (42, 15000)").to_pylist()
    if len(sys.argv) > 2:
        import zonebloom.parquet.leaf_reader
    print(json.dumps([rows, "zonebloom.parquet.value_kernels" in sys.modules]))
"""


def test_only_compiled_kernels_are_loaded_after_a_build(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    ids = range(20_000)
    table = pa.table({"id": ids, "name": [f"name {key}" for key in ids]})
    pq.write_table(table, folder / "0.parquet", write_page_index=True)
    expected = [{"id": 42, "name": "name 42"}, {"id": 15000, "name": "name 15000"}]
    cache = str(tmp_path / "cache")

    def run(*arguments):
        return json.loads(run_python(BUILD_AND_READ, folder, *arguments, XDG_CACHE_HOME=cache))

    assert run() == [expected, False]
    # This loads the kernels after the lookup, which marks them as compiled.
    assert run("load") == [expected, True]
    assert run() == [expected, True]


@pytest.fixture
def budget(monkeypatch, tmp_path):
    replace_function(
        monkeypatch, kernel_budget, "path_in_cache", lambda name: str(tmp_path / "mark")
    )
    set_constant(monkeypatch, kernel_budget, "NUMPY", NumpyBudget(-1))
    set_constant(monkeypatch, kernel_budget, "_CHECKS_BEFORE_COMPILATION", 10)
    return KernelBudget


def test_the_budget_ends_when_it_is_spent_or_the_kernels_are_loaded(budget):
    spent = budget()
    assert [spent.spend(6) for _ in range(3)] == [True, False, False]
    ended = budget()
    assert ended.spend(1)
    ended.end()
    assert not ended.spend(0)
    # The mark tells later processes that the kernels are compiled.
    assert not budget().spend(0)


def test_without_a_cache_folder_nothing_is_saved_for_a_compilation(budget, monkeypatch):
    replace_function(monkeypatch, kernel_budget, "path_in_cache", lambda name: None)
    assert not budget().spend(0)
