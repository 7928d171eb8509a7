"""The layers of the package: modules import only modules of their own room or of earlier rooms.

A room is a folder or a module at the top of the package. `HOUSE` lists the rooms from the lowest
layer to the highest. The rule includes imports inside functions and for type checkers.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

import pytest
from helpers import PACKAGE

HOUSE = [
    "errors",
    "base",
    "sbbf",
    "values",
    "predicates",
    "storage",
    "parquet",
    "sources",
    "catalog",
    "index",
    "scan",
    "opened",
    "building",
    "advise",
    "dataset",
    "zonebloom",
    "plots",
    "exchange",
    "polars",
    "arrow_dataset",
    "results",
    "spark",
    "cli",
    "reference",
]

# The folders inside a room, from the lowest layer to the highest.
FOLDERS = {
    "spark": ["pruning", "joins", "tagging", "hyperspace"],
}

# Imports of higher layers that are allowed inside functions, with the reason.
LATE = {
    ("dataset.indices", "exchange.lance"): "a dataset hands its index to Lance",
    ("dataset.facade", "arrow_dataset"): "a dataset hands itself to readers of PyArrow's",
    ("dataset.facade", "polars"): "a dataset hands itself to Polars",
    ("dataset.engine", "spark.jobs"): "a dataset is built on the session that is active",
    (
        "dataset.opening",
        "spark.session",
    ): "a dataset is opened as the session that is active is set",
}

# The modules (or folders, with a slash) that may import a package.
HOMES = {
    "numba": [
        "sbbf/",
        "parquet.header_kernels",
        "parquet.decompression_kernels",
        "parquet.row_kernels",
        "parquet.find_kernels",
        "parquet.filter_kernels",
        "parquet.take_kernels",
        "parquet.delta_encoding_kernels",
        "storage.pread_kernel",
        "scan.number_kernels",
    ],
    "llvmlite": ["sbbf/"],
    "pyspark": ["spark/", "predicates.spark", "cli.engines"],
    "py4j": ["spark/", "predicates.spark", "cli.engines"],
    "polars": ["polars", "predicates.polars", "predicates.polars_expression"],
    "lance": ["exchange.lance"],
    "sqlglot": ["predicates.sql", "predicates.sql_keywords", "predicates.spark"],
    "substrait": ["predicates/"],
    "click": ["cli/"],
    "matplotlib": ["plots"],
    "deltalake": ["sources/"],
    "obstore": ["storage.object_store"],
    "pyiceberg": ["sources/"],
    "pyarrow.orc": ["sources/"],
    "pyarrow.csv": ["sources/", "cli.reading", "cli.output", "cli.demo"],
    "pyarrow.feather": ["sources/"],
    # Its DNF reader opens nothing; the demo and answers are written.
    "pyarrow.parquet": ["storage/", "parquet/", "sources/", "predicates", "cli.demo", "cli.output"],
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
INDEX_FILES = [
    *("catalog.version_log", "catalog.store", "catalog.folder"),
    *("index.rows", "index.sliced_file"),
]


@dataclass(frozen=True)
class Import:
    """One import: from where, of what, and whether it waits inside a function."""

    source: str
    target: str
    late: bool = False
    line: int = 0
    # Not told by the name: we have a module polars, and there is a package polars.
    ours: bool = True
    for_types: bool = False


def module_name(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "zonebloom"


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}


def is_type_checking(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(node, late=False, for_types=False):
    """Yield every import, whether it is inside a function, and whether only for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, late, for_types
        elif is_type_checking(child):
            for other in child.body:
                yield from statements(ast.Module([other], []), late, True)
            for other in child.orelse:
                yield from statements(ast.Module([other], []), late, for_types)
        else:
            inside = late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from statements(child, inside, for_types)


def own(dotted):
    """The module of ours a dotted name stands for."""
    name = dotted.removeprefix("zonebloom").removeprefix(".")
    while name and name not in FILES:
        name = name.rpartition(".")[0]
    return name or "zonebloom"


def imports_of(source):
    for node, late, for_types in statements(TREES[source]):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{source}:{node.lineno} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            is_ours = name.split(".")[0] == "zonebloom"
            target = own(name) if is_ours else name
            yield Import(source, target, late, node.lineno, is_ours, for_types)


ALL = [edge for name in FILES for edge in imports_of(name)]
OURS = [edge for edge in ALL if edge.ours]


def room(module):
    return module.split(".")[0]


def test_the_walk_finds_imports_of_every_kind():
    edges = {(edge.source, edge.target, edge.late) for edge in ALL}
    assert ("index.loaded", "index.table", False) in edges
    assert ("sbbf.filter", "sbbf.blocks", True) in edges
    assert ("zonebloom", "errors", False) in edges
    assert ("sbbf.jit", "numba", False) in edges
    spark = [
        edge for edge in ALL if room(edge.source) == "dataset" and edge.target.startswith("pyspark")
    ]
    assert spark
    assert all(edge.for_types for edge in spark)


def test_every_module_belongs_to_a_room():
    assert {room(name) for name in FILES} <= set(HOUSE)
    for name, path in FILES.items():
        parts = name.split(".")
        if len(parts) > 1 and (len(parts) > 2 or path.name == "__init__.py"):
            assert parts[1] in FOLDERS.get(parts[0], []), f"{name} is in no folder of the house"


def floor(module):
    """Return the layer of a module's room, and of its folder in the room (-1 if it has none)."""
    parts = module.split(".")
    within = FOLDERS.get(parts[0], [])
    inner = parts[1] if len(parts) > 1 else ""
    return HOUSE.index(parts[0]), within.index(inner) if inner in within else -1


def is_upwards(edge):
    if room(edge.source) != room(edge.target):
        return floor(edge.target)[0] > floor(edge.source)[0]
    inner = floor(edge.source)[1], floor(edge.target)[1]
    # Modules directly in a room may use its folders. A folder may use the folders before it.
    return -1 not in inner and inner[1] > inner[0]


def wrong_arrows(imports):
    return [
        f"{edge.source}:{edge.line} imports {edge.target}"
        for edge in imports
        if is_upwards(edge) and not (edge.late and (edge.source, edge.target) in LATE)
    ]


def circle(imports):
    """Return modules that import one another in a circle, or an empty list."""
    below = {}
    for edge in imports:
        # A folder may import names of its own modules to export them, which is no circle.
        hands_on = f"{edge.source}.".startswith(f"{edge.target}.")
        if not hands_on and (edge.source, edge.target) not in LATE:
            below.setdefault(edge.source, set()).add(edge.target)
    visited, path = set(), []

    def visit(name):
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in visited:
            path.append(name)
            for target in sorted(below.get(name, ())):
                if ring := visit(target):
                    return ring
            path.pop()
            visited.add(name)
        return []

    return next((ring for name in sorted(below) if (ring := visit(name))), [])


def test_imports_go_only_downwards():
    assert wrong_arrows(OURS) == []


def test_there_are_no_circles():
    assert circle(OURS) == []


def test_exceptions_are_in_use():
    used = {(edge.source, edge.target) for edge in OURS if edge.late}
    assert set(LATE) <= used


@pytest.mark.parametrize(
    "planted",
    [
        Import("storage.files", "catalog.store"),
        Import("sbbf.filter", "dataset", late=True),
        Import("scan.plan", "dataset", for_types=True),
        Import("dataset.facade", "polars"),
        Import("parquet.row_group_reader", "index.table"),
        Import("spark.pruning.prune", "spark.hyperspace.managed_lookup"),
    ],
    ids=lambda edge: f"{edge.source} to {edge.target}",
)
def test_a_planted_breach_is_noticed(planted):
    assert len(wrong_arrows([*OURS, planted])) == 1


def test_a_planted_circle_is_noticed():
    assert circle([*OURS, Import("scan.plan", "scan.scanner", for_types=True)])
    assert circle([*OURS, Import("index.sliced_walk", "index.sliced")])


@pytest.mark.parametrize("package", HOMES)
def test_packages_are_imported_only_at_home(package):
    def at_home(module):
        return any(
            module == home or (home.endswith("/") and f"{module}.".startswith(home[:-1] + "."))
            for home in HOMES[package]
        )

    strangers = [
        f"{FILES[edge.source].name}:{edge.line}"
        for edge in ALL
        if not (edge.ours or edge.for_types)
        and f"{edge.target}.".startswith(f"{package}.")
        and not at_home(edge.source)
    ]
    assert strangers == []


def test_sbbf_imports_no_module_of_datasets():
    assert {room(e.target) for e in OURS if room(e.source) == "sbbf"} <= {
        "sbbf",
        "errors",
        "base",
    }


def called(node):
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_only_the_rooms_of_files_open_data_files():
    wrong = []
    for name, tree in TREES.items():
        if room(name) in ("storage", "parquet", "sources") or name in INDEX_FILES:
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
