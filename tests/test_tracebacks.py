"""Test in a real kernel that Jupyter shows errors with the lines of the user and one message.

A plain terminal, unexpected exceptions and the debugger work as without zonebloom.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pyarrow as pa
import pytest
from helpers import PACKAGE, ROOT

import zonebloom as zb
from zonebloom.errors import ColumnNotFound, FragmentUnreadable, ZoneBloomError

SETUP = """
import pyarrow as pa, pyarrow.parquet as pq
import zonebloom as zb
from zonebloom.errors import FragmentUnreadable
pq.write_table(pa.table({"id": range(100)}), "0.parquet")
ds = zb.dataset("0.parquet")
def mine(keys):
    return ds.lookup("id", keys)
def failing(*arguments, **options):
    raise ZeroDivisionError("a bug")
"""
CAUSED = """
try:
    raise OSError("the disk is gone at s3://key:secret@bucket/a")
except OSError as error:
    raise FragmentUnreadable("cannot read a.parquet") from error
"""
UNREADABLE = """
open("0.parquet", "wb").write(b"PAR1" + bytes(100) + b"PAR1")
zb.dataset("0.parquet").to_table()
"""
BUG = """
import zonebloom.scan.scanner
zonebloom.scan.scanner.arguments.require_integer = failing
ds.head(5)
"""
CELLS = {
    "setup": SETUP,
    "filter": 'ds.to_table(filter="id = ")',
    "column": 'ds.lookup("idd", [1])',
    "in a function": "mine(5.5j)",
    "lazily": 'list(ds.to_batches(filter="id ="))',
    "index": 'ds.validate_index("nothing")',
    "cause": CAUSED,
    "plain mode": "%xmode Plain",
    "plainly": "mine(5.5j)",
    "verbose mode": "%xmode Verbose",
    "verbosely": "mine(5.5j)",
    "context mode": "%xmode Context",
    "again": "%tb",
    "unreadable": UNREADABLE,
    "bug": BUG,
}
MESSAGES = {
    "filter": "FilterError: cannot read the filter",
    "column": "ColumnNotFound: there is no column 'idd'",
    "in a function": "InvalidArgument: keys is of type complex",
    "lazily": "FilterError: cannot read the filter",
    "index": "IndexNotFound: ",
    "cause": "FragmentUnreadable: cannot read a.parquet",
    "plainly": "InvalidArgument: keys is of type complex",
    "again": "InvalidArgument: keys is of type complex",
    "unreadable": "FragmentUnreadable: cannot read",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the traceback that a kernel shows for each cell."""
    nbformat, nbclient = map(pytest.importorskip, ("nbformat", "nbclient"))
    pytest.importorskip("ipykernel")
    folder = tmp_path_factory.mktemp("kernel")
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(
        notebook, timeout=120, allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(
        env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder / "ipython")}
    )
    return {
        name: without_colours("\n".join(_traceback_lines(cell.outputs)))
        for name, cell in zip(CELLS, notebook.cells, strict=True)
    }


def _traceback_lines(outputs):
    for output in outputs:
        if output.output_type == "error":
            yield from output["traceback"]
        elif "text" in output:
            # %tb prints.
            yield output["text"]


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("name", MESSAGES)
def test_an_error_shows_the_cell_and_the_message(outputs, name):
    text = outputs[name]
    assert text.count(MESSAGES[name]) == 1
    assert "Cell In[" in text
    assert str(PACKAGE) not in text
    assert "File " not in text


def test_every_frame_of_the_user_is_shown(outputs):
    for name in ("in a function", "plainly", "again"):
        assert "mine(5.5j)" in outputs[name]
        assert 'return ds.lookup("id", keys)' in outputs[name]


def test_a_cause_is_one_line(outputs):
    lines = outputs["cause"].splitlines()
    assert lines[-1] == "Caused by OSError: the disk is gone at s3://***@bucket/a"
    # The cell names it twice.
    assert outputs["cause"].count("OSError") == 3


def test_the_verbose_mode_shows_all_frames(outputs):
    assert str(PACKAGE) in outputs["verbosely"]
    assert "values = 5.5j" in outputs["verbosely"]


def test_an_unexpected_exception_shows_all_frames(outputs):
    assert "ZeroDivisionError: a bug" in outputs["bug"]
    assert str(PACKAGE / "scan" / "scanner.py") in outputs["bug"]
    assert outputs["setup"] == ""


def test_the_debugger_reaches_the_frame_that_raised(tmp_path: Path):
    pytest.importorskip("IPython")
    commands = [
        "import pyarrow as pa, zonebloom as zb",
        'ds = zb.dataset(pa.table({"id": [1]}))',
        'ds.lookup("idd", [1])',
        "%debug",
        "where",
        "p 'frame of', __name__",
        "quit",
        "exit",
    ]
    process = subprocess.run(
        [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--no-confirm-exit"],
        input="\n".join(commands),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path / "ipython")},
        capture_output=True,
        text=True,
        check=True,
    )
    shown, _, debugged = without_colours(process.stdout).partition("ipdb>")
    assert "ColumnNotFound: there is no column 'idd'" in shown
    # The debugger starts in the function that raised, whose frame the message does not show.
    assert str(PACKAGE / "facade" / "dataset.py") not in shown
    assert str(PACKAGE / "facade" / "dataset.py") in debugged
    assert "('frame of', 'zonebloom." in debugged


def test_a_plain_terminal_shows_the_usual_traceback():
    with pytest.raises(ColumnNotFound) as caught:
        zb.dataset(pa.table({"id": [1]})).lookup("idd", [1])
    lines = caught.value._render_traceback_()
    assert lines == traceback.format_exception(caught.value)
    assert str(PACKAGE) in "".join(lines)


def test_rendering_leaves_the_exception_as_it_was():
    core = pytest.importorskip("IPython.core.ultratb")
    from zonebloom.errors import _ipython_traceback

    formatter = core.AutoFormattedTB(mode="Context")
    try:
        try:
            raise OSError("gone")
        except OSError as error:
            raise FragmentUnreadable("cannot read") from error
    except ZoneBloomError as caught:
        frames, cause = caught.__traceback__, caught.__cause__
        assert _ipython_traceback(formatter, caught)[-1] == "Caused by OSError: gone"
        assert (caught.__traceback__, caught.__cause__) == (frames, cause)
        assert isinstance(caught.__context__, OSError)
