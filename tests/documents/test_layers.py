"""Test the layers of the package: modules import only modules of their own or of lower layers.

A layer is a folder or a module at the top of the package. `LAYERS` lists them from the lowest to
the highest. The rule includes imports inside functions and for type checkers.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

import pytest
from support.helpers import PACKAGE, ROOT

LAYERS = [
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
    "snapshot",
    "scan",
    "reading",
    "building",
    "changes",
    "advise",
    "exchange",
    "lazy_frame",
    "facade",
    "zonebloom",
    "plots",
    "results",
    "spark",
    "cli",
]

# The folders inside a layer, from the lowest to the highest.
SUBFOLDERS = {
    "index": ["row_keys", "zone_bloom", "zone_map", "hash"],
    "spark": ["pruning", "joins", "tagging", "hyperspace"],
}

# Imports of higher layers that are allowed inside functions, with the reason.
ALLOWED_UPWARDS = {
    ("facade.engine", "spark.jobs"): "a build uses the active Spark session",
    (
        "facade.opening",
        "spark.session_settings",
    ): "a dataset uses the settings of the active Spark session",
}


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
}


@dataclass(frozen=True)
class Import:
    """One import of a module by another one.

    Attributes
    ----------
    source, target : str
        The module that imports, and the imported one.
    is_late : bool
        Whether the import is inside a function.
    line : int
    """

    source: str
    target: str
    is_late: bool = False
    line: int = 0


def module_name(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "zonebloom"


PATHS = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in PATHS.items()}


def import_statements(node, *, is_late=False):
    """Yield every import, and whether it is inside a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, is_late
        else:
            is_inside = is_late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from import_statements(child, is_late=is_inside)


def owning_module(name, modules):
    """Return the module that a dotted name is or belongs to, or an empty text."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def own_module(dotted):
    """Return the module of this package that a dotted name is or belongs to."""
    return owning_module(dotted.removeprefix("zonebloom").removeprefix("."), PATHS) or "zonebloom"


def imported_names(node):
    """Return the dotted names that an import statement may import. Some may be no modules."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, f"relative import: {ast.unparse(node)}"
    return [f"{node.module}.{alias.name}" for alias in node.names]


def imports_of(source):
    """Yield the imports of modules of this package by one of them."""
    for node, is_late in import_statements(TREES[source]):
        for name in imported_names(node):
            if name.split(".")[0] == "zonebloom":
                yield Import(source, own_module(name), is_late=is_late, line=node.lineno)


def called_name(node):
    """Return the name of the function or method that a call calls."""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


OWN_IMPORTS = [edge for name in PATHS for edge in imports_of(name)]


def layer(module):
    return module.split(".")[0]


def test_every_module_belongs_to_a_layer():
    assert {layer(name) for name in PATHS} <= set(LAYERS)
    for name, path in PATHS.items():
        parts = name.split(".")
        if len(parts) > 1 and (len(parts) > 2 or path.name == "__init__.py"):
            assert parts[1] in SUBFOLDERS.get(parts[0], []), (
                f"{name} is in a folder that SUBFOLDERS does not list"
            )


def rank(module):
    """Return the number of a module's layer, and of its folder in the layer (-1 if it has none)."""
    parts = module.split(".")
    within = SUBFOLDERS.get(parts[0], [])
    inner = parts[1] if len(parts) > 1 else ""
    return LAYERS.index(parts[0]), within.index(inner) if inner in within else -1


def is_upwards(edge):
    if layer(edge.source) != layer(edge.target):
        return rank(edge.target)[0] > rank(edge.source)[0]
    folders = rank(edge.source)[1], rank(edge.target)[1]
    # Modules directly in a layer may use its folders. A folder may use the folders before it.
    return -1 not in folders and folders[1] > folders[0]


def upward_imports(imports):
    return [
        f"{edge.source}:{edge.line} imports {edge.target}"
        for edge in imports
        if is_upwards(edge) and not (edge.is_late and (edge.source, edge.target) in ALLOWED_UPWARDS)
    ]


def find_cycle(imports):
    """Return modules that import one another in a cycle, or an empty list."""
    targets = {}
    for edge in imports:
        # A package may import names from its own modules to export them, which is no cycle.
        is_reexport = f"{edge.source}.".startswith(f"{edge.target}.")
        if not is_reexport:
            targets.setdefault(edge.source, set()).add(edge.target)
    visited, path = set(), []

    def visit(name):
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in visited:
            path.append(name)
            for target in sorted(targets.get(name, ())):
                if cycle := visit(target):
                    return cycle
            path.pop()
            visited.add(name)
        return []

    return next((cycle for name in sorted(targets) if (cycle := visit(name))), [])


def test_no_module_imports_a_higher_layer():
    assert upward_imports(OWN_IMPORTS) == []


def test_there_are_no_import_cycles():
    assert find_cycle(OWN_IMPORTS) == []


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "root"), [("bench", ROOT), ("tests", ROOT / "tests")])
def test_files_beside_the_package_have_no_import_cycle(folder, root):
    paths = {
        ".".join(path.relative_to(root).with_suffix("").parts): path
        for path in (ROOT / folder).rglob("*.py")
    }
    imports = [
        Import(source, target)
        for source, path in paths.items()
        for node, _ in import_statements(ast.parse(path.read_text(encoding="utf-8")))
        for name in imported_names(node)
        if (target := owning_module(name, paths)) and target != source
    ]
    assert imports
    assert find_cycle(imports) == []


def test_every_allowed_upward_import_exists():
    pairs = {(edge.source, edge.target) for edge in OWN_IMPORTS if edge.is_late}
    assert set(ALLOWED_UPWARDS) <= pairs


@pytest.mark.parametrize(
    "upward_import",
    [
        Import("storage.files", "catalog.store"),
        Import("sbbf.filter", "facade", is_late=True),
        Import("scan.plan", "facade"),
        Import("facade.dataset", "plots"),
        Import("parquet.nested_reader", "index.table"),
        Import("spark.pruning.prune", "spark.hyperspace.index_manager"),
    ],
    ids=lambda edge: f"{edge.source} to {edge.target}",
)
def test_an_upward_import_is_found(upward_import):
    assert len(upward_imports([*OWN_IMPORTS, upward_import])) == 1


def test_an_import_cycle_is_found():
    assert find_cycle([*OWN_IMPORTS, Import("scan.plan", "scan.scanner")])
    assert find_cycle([*OWN_IMPORTS, Import("catalog.version_log", "catalog.store")])


def test_the_guide_lists_all_layers_in_order():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, block, *_ = text.partition("The package from the bottom up.")[2].split("```")
    listed = []
    for line in block.strip().splitlines():
        # Two spaces separate a layer from its description. The last line has no description.
        name, _, description = line.partition("  ")
        listed += [name] if description else line.split()
    assert [name.rstrip("/") for name in listed] == [name for name in LAYERS if name != "zonebloom"]


def test_only_the_layers_of_files_open_data_files():
    calls = {}
    for name, tree in TREES.items():
        if layer(name) in ("storage", "parquet", "sources", "changes"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                is_builtin_open = isinstance(node.func, ast.Name) and node.func.id == "open"
                if called_name(node) in OPENERS or is_builtin_open:
                    calls[name] = f"{PATHS[name].name}:{node.lineno} calls {called_name(node)}"
    assert list(calls.values()) == []
