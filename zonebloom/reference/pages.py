"""The reference: HTML pages made of docstrings by pdoc."""

from __future__ import annotations

import re
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pdoc
import pdoc.doc
import pdoc.render
from jinja2 import pass_context
from markupsafe import Markup

import zonebloom

HERE = Path(__file__).parent
MODULES = (
    "zonebloom",
    "zonebloom.errors",
    "zonebloom.results",
    "zonebloom.polars",
    "zonebloom.spark",
    "zonebloom.plots",
    "zonebloom.exchange.lance",
    "zonebloom.exchange.hudi",
)
# Of these the docstring alone is for users.
DOCSTRING_ONLY_MODULES = ("zonebloom.spark.hyperspace.config",)
# Members that pages leave out, by patterns of names: why.
HIDDEN_MEMBERS = {
    r"zonebloom\.results\.ArrowDataset\.(?!unindexed)\w+": "PyArrow's, with its parameters",
    r"zonebloom\.results\.ScanPlan\.html": "notebooks call it",
    r"zonebloom\.Encryption\.\w+": "the index calls it",
    r"zonebloom\.ParquetKeys\.(?!format)\w+": "what reads files calls it",
    r"zonebloom\.spark\.Indexed\.\w+": "functions that take it call it",
    r"zonebloom\.spark\.IndexManager\.create": "create_index calls it",
    r"zonebloom\.spark\.IndexManager\.[a-z]+[A-Z]\w+": "Hyperspace's name of another method",
}
_IN_CODE = '</span><span class="o">.</span><span class="n">'
# What it stands for is told of `Dataset.scanner`, and does not fit on a line.
_OF_PREDICATES = _IN_CODE.join(["predicates", "ast", r"\w+</span>"])
_FILTER = rf'<span class="nb">str</span>(?:(?!<span class="param">).)*{_OF_PREDICATES}'
_linkify = pdoc.render.env.filters["linkify"]


def public_names(module: ModuleType) -> list[str]:
    """What a module is for: its ``__all__``, or all its classes where it has none."""
    classes = [name for name, value in vars(module).items() if isinstance(value, type)]
    return list(getattr(module, "__all__", classes))


def is_hidden(name: str) -> bool:
    """Whether a member is left out, but for constructors, of which docstrings decide."""
    own = name.removesuffix("__init__")
    return own == name and any(re.fullmatch(pattern, name) for pattern in HIDDEN_MEMBERS)


def write_pages(folder: Path) -> None:
    """Write a page for each module, and one to begin with, ``index.html``."""
    homes: dict[str, str] = {}
    for name in MODULES:
        module = import_module(name)
        vars(module)["__all__"] = public_names(module)
        for public in module.__all__:
            # What a module hands on when it is first used, pdoc does not see before.
            value = getattr(module, public)
            setattr(module, public, value)
            if isinstance(value, type):
                homes[f"{value.__module__}.{public}"] = f"{name}.{public}"
                _take_inherited(value)
    for name in DOCSTRING_ONLY_MODULES:
        vars(import_module(name))["__all__"] = []
    pdoc.render.configure(
        docformat="numpy",
        footer_text=f"zonebloom {zonebloom.__version__}",
        show_source=False,
        template_directory=HERE,
    )
    pdoc.render.env.tests["hidden"] = is_hidden
    pdoc.render.env.tests["of_ours_without_page"] = _is_without_page
    pdoc.render.env.filters["linkify"] = _linked_by(homes)
    with warnings.catch_warnings():
        # Aliases of types are told by their names, which say more than what they stand for.
        warnings.filterwarnings("ignore", "Error parsing type annotation")
        # A function has the name of a module, and errors are part of the package already.
        others = [
            name for name in (*MODULES, *DOCSTRING_ONLY_MODULES) if name != "zonebloom.errors"
        ]
        pdoc.pdoc(*others, "!zonebloom.dataset", output_directory=folder)


def _take_inherited(of: type) -> None:
    """What a base of ours has is told of the class itself: the base has no page."""
    for base in of.__mro__[1:]:
        if base.__module__.startswith("zonebloom."):
            for name, member in vars(base).items():
                if not name.startswith("_") and name not in vars(of):
                    setattr(of, name, member)


def _is_without_page(module: str, pages: Any) -> bool:
    return module.startswith("zonebloom.") and module not in pages


def _linked_by(homes: dict[str, str]) -> Any:
    """Links of classes by the names users know, to whichever page they are on."""
    classes = {name.rpartition(".")[2]: name for name in homes.values()}

    def spelled(match: re.Match[str], module: pdoc.doc.Module) -> str:
        name = match[1]
        return match[0] if module.get(name) else f"<code>{classes.get(name, name)}"

    @pass_context
    def linkify(context: Any, code: str, *args: Any, **options: Any) -> Any:
        code = str(code)
        for home, name in homes.items():
            code = code.replace(home.replace(".", _IN_CODE), name.replace(".", _IN_CODE))
        code = re.sub(r"<code>(\w+)", lambda match: spelled(match, context["module"]), code)
        # Aliases.
        code = re.sub(r'class="s1">(?:&#39;|\')([A-Z]\w+)(?:&#39;|\')', r'class="n">\1', code)
        code = re.sub(_FILTER, '<span class="n">Filter</span>', code)
        return _linkify(context, Markup(code), *args, **options)

    return linkify
