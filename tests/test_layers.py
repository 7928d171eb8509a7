"""The house: who may import whom (DESIGN.md, section 2).

Imports go only downwards in `HOUSE`: a module may import modules of its own room and of
rooms above it in the list, at the top of the file or inside a function. What is imported for
type checkers only does not count.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

import pytest
from helpers import PACKAGE

HOUSE = [
    "errors",
    "arguments",
    "threads",
    "progress",
    "ranges",
    "sbbf",
    "values",
    "predicates",
    "storage",
    "index",
    "display",
    "advice",
    "plots",
    "plan",
    "recheck",
    "binding",
    "execute",
    "planner",
    "builder",
    "scan",
    "advise",
    "engines",
    "dataset",
    "zonebloom",
    "polars",
    "spark",
    "demo",
    "cli",
    "commands",
]

# Upwards, and only inside a function, each for a reason.
LATE = {
    ("builder", "spark.build"): "the Spark engine trains the tasks that the builder cuts",
    ("dataset", "polars"): "a dataset hands itself to Polars",
    ("cli", "commands"): "the entry point can say that click is missing",
}

# Rooms a package may be imported from; modules, or folders with a slash.
HOMES = {
    "numba": ["sbbf/", "storage.parquet.locations", "storage.pread_kernel"],
    "llvmlite": ["sbbf/"],
    "pyspark": ["spark/", "predicates.spark", "engines"],
    "py4j": ["spark/", "predicates.spark", "engines"],
    "polars": ["polars", "predicates.polars"],
    "lance": ["index.lance"],
    "sqlglot": ["predicates.sql", "predicates.spark"],
    "substrait": ["predicates/"],
    "click": ["cli", "commands"],
    "deltalake": ["storage/"],
    "pyiceberg": ["storage/"],
    "pyarrow.orc": ["storage/"],
    "pyarrow.csv": ["storage/"],
    "pyarrow.feather": ["storage/"],
    # Its DNF reader opens nothing; the demo writes.
    "pyarrow.parquet": ["storage/", "predicates", "demo"],
}

# Calls that open a file to read, and who else may make them: the index's own files.
OPENERS = {
    "open_input_file",
    "open_input_stream",
    "input_stream",
    "memory_map",
    "OSFile",
    "ParquetFile",
    "ParquetDataset",
    "make_fragment",
}
INDEX_FILES = ["index.catalog", "index.table", "index.sliced", "spark.manager.log"]


@dataclass(frozen=True)
class Import:
    """One import: from where, of what, and whether it waits inside a function."""

    source: str
    target: str
    late: bool
    line: int
    # Not told by the name: we have a module polars, and there is a package polars.
    ours: bool


def module_name(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "zonebloom"


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}


def is_type_checking(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(node, late=False):
    """Every import statement that runs, and whether it is inside a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, late
        elif is_type_checking(child):
            for other in child.orelse:
                yield from statements(other, late)
        else:
            inside = late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from statements(child, inside)


def own(dotted):
    """The module of ours a dotted name stands for."""
    name = dotted.removeprefix("zonebloom").removeprefix(".")
    while name and name not in FILES:
        name = name.rpartition(".")[0]
    return name or "zonebloom"


def imports_of(source):
    for node, late in statements(TREES[source]):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{source}:{node.lineno} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            is_ours = name.split(".")[0] == "zonebloom"
            yield Import(source, own(name) if is_ours else name, late, node.lineno, is_ours)


ALL = [each for name in FILES for each in imports_of(name)]
OURS = [each for each in ALL if each.ours]


def room(module):
    return module.split(".")[0]


def test_the_walk_finds_imports_of_every_kind():
    found = {(each.source, each.target, each.late) for each in ALL}
    assert ("index.loaded", "index.table", False) in found
    assert ("sbbf.filter", "sbbf.blocks", True) in found
    assert ("zonebloom", "errors", False) in found
    assert ("sbbf.jit", "numba", False) in found
    assert not any(each.target.startswith("pyspark") for each in ALL if each.source == "dataset")


def test_every_module_has_a_place_in_the_house():
    assert {room(name) for name in FILES} <= set(HOUSE)


@pytest.mark.parametrize("source", FILES)
def test_imports_go_only_downwards(source):
    wrong = [
        f"{FILES[source].name}:{each.line} imports {each.target}"
        for each in OURS
        if each.source == source
        and room(each.target) != room(source)
        and HOUSE.index(room(each.target)) > HOUSE.index(room(source))
        and not (each.late and (source, each.target) in LATE)
    ]
    assert wrong == []


def test_exceptions_are_in_use():
    used = {(each.source, each.target) for each in OURS if each.late}
    assert set(LATE) <= used


def test_there_are_no_circles():
    allowed = [each for each in OURS if (each.source, each.target) not in LATE]
    below = {name: {e.target for e in allowed if e.source == name} - {name} for name in FILES}
    # A folder hands its modules' names on; that is no circle.
    below = {
        name: {t for t in targets if not name.startswith(f"{t}.")}
        for name, targets in below.items()
    }
    done, path = set(), []

    def visit(name):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            path.append(name)
            for target in sorted(below[name]):
                visit(target)
            path.pop()
            done.add(name)

    for name in FILES:
        visit(name)


@pytest.mark.parametrize("package", HOMES)
def test_packages_are_imported_only_at_home(package):
    def at_home(module):
        return any(
            module == home or (home.endswith("/") and f"{module}.".startswith(home[:-1] + "."))
            for home in HOMES[package]
        )

    strangers = [
        f"{FILES[each.source].name}:{each.line}"
        for each in ALL
        if not each.ours
        and f"{each.target}.".startswith(f"{package}.")
        and not at_home(each.source)
    ]
    assert strangers == []


def test_sbbf_knows_nothing_of_datasets():
    assert {room(e.target) for e in OURS if room(e.source) == "sbbf"} <= {
        "sbbf",
        "errors",
        "arguments",
    }


def test_the_reference_is_plain_python():
    found = {each.target for each in ALL if each.source == "sbbf.reference"}
    assert found == {"__future__.annotations", "struct"}


def called(node):
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_only_storage_opens_data_files():
    wrong = []
    for name, tree in TREES.items():
        if room(name) == "storage" or name in INDEX_FILES:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                is_builtin_open = isinstance(node.func, ast.Name) and node.func.id == "open"
                if called(node) in OPENERS or is_builtin_open:
                    wrong.append(f"{FILES[name].name}:{node.lineno} calls {called(node)}")
    assert wrong == []


def test_a_folders_init_only_hands_names_on():
    # predicates/__init__ is the one that also chooses among its languages.
    for name, path in FILES.items():
        if path.name == "__init__.py" and name not in ("zonebloom", "predicates", "spark"):
            made = [n for n in TREES[name].body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
            assert made == [], path
