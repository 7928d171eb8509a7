"""Test the layers of the package, which `pyproject.toml` lists for import-linter."""

from __future__ import annotations

import ast
import subprocess
import tomllib

from support.helpers import PACKAGE, ROOT

# Calls that open a file for reading.
OPENERS = {
    "open_input_file",
    "open_input_stream",
    "input_stream",
    "memory_map",
    "OSFile",
    "ParquetFile",
    "ParquetDataset",
    "make_fragment",
    "open",
}


def called_name(node):
    """Return the name of the function that a call calls, or of the method, but for `open`."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr if function.attr != "open" else ""
    return getattr(function, "id", "")


def test_modules_import_lower_layers_only_and_in_no_circle():
    command = ["lint-imports", "--no-cache"]
    linted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_the_guide_lists_all_layers_in_order():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, block, *_ = text.partition("The package from the bottom up.")[2].split("```")
    listed = []
    for line in block.strip().splitlines():
        # Two spaces separate a layer from its description. The last line has no description.
        name, _, description = line.partition("  ")
        listed += [name] if description else line.split()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract, *_ = settings["tool"]["importlinter"]["contracts"]
    assert [name.rstrip("/") for name in listed] == contract["layers"][::-1]


def test_only_the_layers_of_files_open_data_files():
    calls = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] in ("storage", "parquet", "sources", "changes"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and called_name(node) in OPENERS:
                calls.append(f"{path.name}:{node.lineno} calls {called_name(node)}")
    assert calls == []
