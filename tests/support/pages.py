"""Run the code blocks of a Markdown page, and compare their output with what the page shows.

All blocks of a page run in order, in one folder and one namespace:

- ``python``: Python code. Comments ``<!-- python ... -->`` contain code that readers do not see.
- ``<!-- python of PAGE.md#HEADING -->``: runs the first Python code below a heading of another
  page. Readers do not see it.
- ``console``: lines ``$ command``, each followed by its output. Comments ``<!-- console ... -->``
  contain commands that readers do not see.
- ``text``, right after a ``python`` block: what the code printed. If the block raised an error of
  zonebloom, the last line is the error.
- ``sh``: commands that install the package. They are not run, but their extras must exist.

The line ``<!-- output varies -->`` before a block of output turns off the comparison. Times and
numbers of reads are never compared, and sizes may differ by a half.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tomllib
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.helpers import ROOT

from zonebloom.cli import text as cli_text
from zonebloom.errors import ZoneBloomError

WRITE = bool(os.environ.get("ZONEBLOOM_WRITE"))
VARIES = "<!-- output varies -->\n"
_BLOCK = re.compile(
    r"^(?P<varies><!-- output varies -->\n)?(?:"
    r"```(?P<kind>\w*)\n(?P<body>.*?)^```$"
    r"|<!-- (?P<hidden_kind>python|console)\n(?P<hidden_body>.*?)^-->$"
    r"|<!-- python of (?P<page>[\w-]+\.md)#(?P<anchor>[\w-]+) -->$)",
    re.MULTILINE | re.DOTALL,
)
# A size, or a ratio of sizes such as 12x.
_SIZE = re.compile(r"([\d,.]+)( B| kB| MB| GB|x)\b")
_UNITS = {" B": 1, " kB": 1e3, " MB": 1e6, " GB": 1e9, "x": 1}
_EXTRAS = re.compile(r"(?:zonebloom|\.)\[([\w,-]+)\]")


class Page:
    """A Markdown page whose blocks of code can be run."""

    def __init__(self, path: Path):
        self.path = path
        self.text = path.read_text(encoding="utf-8")

    def run(self, namespace: dict[str, Any] | None = None) -> None:
        """Run all blocks in the current folder. Write their output to the page, or compare it."""
        namespace = {} if namespace is None else namespace
        pieces: list[str] = []
        end = 0
        printed: str | None = None
        for match in _BLOCK.finditer(self.text):
            between = self.text[end : match.start()]
            pieces.append(between)
            end = match.end()
            block = match[0]
            kind = match["kind"] or match["hidden_kind"] or (match["page"] and "python")
            where = f"{self.path.name}:{self.text.count(chr(10), 0, match.start()) + 1}"
            if kind == "text":
                assert printed is not None and not between.strip(), f"{where}: no code before it"
                block = self._checked(match, printed, where)
                printed = None
            else:
                assert not printed, f"{where}: the output of the code before it is missing"
                if kind == "python":
                    is_hidden = match["kind"] is None
                    body = self._python_of(match)
                    shows_error = self.text[end:].lstrip().startswith(("```text", VARIES))
                    printed = _run_python(body, namespace, where, shows_error)
                    if is_hidden:
                        assert not printed, f"{where}: hidden code printed {printed!r}"
                elif kind == "console":
                    if match["kind"] is None:
                        _run_commands(match["hidden_body"])
                    else:
                        block = self._checked(match, _run_commands(match["body"]), where)
                else:
                    assert kind == "sh", f"{where}: a block of an unknown kind"
                    _check_installation(match["body"], where)
            pieces.append(block)
        assert not printed, f"{self.path.name}: the output of the last code is missing"
        if WRITE:
            self.path.write_text("".join(pieces) + self.text[end:], encoding="utf-8")

    def _python_of(self, match: re.Match[str]) -> str:
        if match["page"]:
            return _first_python_below(self.path.parent / match["page"], match["anchor"])
        return match["body"] if match["hidden_kind"] is None else match["hidden_body"]

    def _checked(self, match: re.Match[str], output: str, where: str) -> str:
        shown = match["body"]
        if WRITE:
            unchanged = stable_lines(output) == stable_lines(shown)
            new_body = shown if unchanged and match["varies"] else f"{output.rstrip()}\n"
            return f"{match['varies'] or ''}```{match['kind']}\n{new_body}```"
        if not match["varies"]:
            assert stable_lines(output) == stable_lines(shown), where
            assert _have_similar_sizes(output, shown), f"{where}: prints other sizes:\n{output}"
        return match[0]


def _first_python_below(path: Path, anchor: str) -> str:
    """Return the first Python code below a heading, which may be hidden."""
    text = path.read_text(encoding="utf-8")
    for heading in re.finditer(r"^#+ (.+)$", text, re.MULTILINE):
        if heading[1].lower().replace(" ", "-") == anchor:
            for block in _BLOCK.finditer(text, heading.end()):
                if "python" in (block["kind"], block["hidden_kind"]):
                    return block["body"] or block["hidden_body"]
    raise AssertionError(f"{path.name} has no heading #{anchor}")


def stable_lines(text: str) -> list[str]:
    """Return the lines of a text, with placeholders for parts that differ between runs."""
    text = _SIZE.sub("SIZE", text)
    text = re.sub(r"[\d,.]+ (ms|s|us|µs)\b", "TIME", text)
    text = re.sub(r"[\d,]+ reads?\b", "READS", text)
    # The widths of columns depend on the sizes in them, so collapse spaces and rules.
    text = re.sub(r"[─━-]{4,}", "----", text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def _have_similar_sizes(text: str, other_text: str) -> bool:
    """Return whether the sizes in two texts with the same stable lines differ by at most a half.

    Sizes depend a little on the versions of packages. Whether a page or a row group is read makes
    a larger difference.
    """
    pairs = zip(_sizes(text), _sizes(other_text), strict=True)
    return all(max(pair) <= 1.5 * min(pair) for pair in pairs)


def _sizes(text: str) -> list[float]:
    return [float(number.replace(",", "")) * _UNITS[unit] for number, unit in _SIZE.findall(text)]


@contextlib.contextmanager
def captured_output() -> Iterator[Callable[[], str]]:
    """Capture stdout and stderr in one stream, and yield a function that returns its text."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        yield lambda: (stream.flush(), stream.buffer.getvalue().decode())[1]


def run_command(line: str, fails: bool = False) -> str:
    """Run a command of a page, and return its output.

    ``fails`` says that the page shows an error of the command. The command has a process of its
    own, so that it finds what a reader's command finds: no index in memory, and no kernels.
    """
    # Wrong usage has code 2.
    expected_codes = (cli_text.FAILED, 2) if fails else (0, cli_text.FOUND_NOTHING)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-c", line],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode in expected_codes, done.stdout
    return done.stdout


def _run_commands(body: str) -> str:
    outputs = []
    # The text before the first command is empty.
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        line, _, shown_output = part.partition("\n")
        output = run_command(line, fails="Error: " in shown_output)
        outputs.append(f"$ {line}\n{output}")
    return "".join(outputs)


def _run_python(body: str, namespace: dict[str, Any], where: str, shows_error: bool) -> str:
    with captured_output() as output, warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = _print_warning
        try:
            # Blank lines keep the line numbers of the page in tracebacks.
            first_line = int(where.rpartition(":")[2])
            exec(compile("\n" * first_line + body, where, "exec"), namespace)
        except ZoneBloomError as error:
            if not shows_error:
                raise
            print("".join(traceback.format_exception_only(error)), end="")
    return output()


def _print_warning(message: Any, category: type[Warning], *_: Any, **__: Any) -> None:
    print(f"{category.__name__}: {message}", file=sys.stderr)


def _check_installation(body: str, where: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extras in _EXTRAS.findall(body):
        unknown = set(extras.split(",")) - set(project["optional-dependencies"])
        assert not unknown, f"{where}: there is no extra {unknown}"


def run_as_a_reader(path: Path, folder: Path) -> None:
    """Run a page in a folder, in a new process, which has read nothing and loaded no kernels."""
    done = subprocess.run(
        [sys.executable, __file__, str(path)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


if __name__ == "__main__":
    Page(Path(sys.argv[1])).run()
