"""Write the reference: HTML pages that pdoc makes from docstrings."""

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
# The pages of these modules show only the docstring of the module.
DOCSTRING_ONLY_MODULES = ("zonebloom.spark.hyperspace.config",)
# Members that pages leave out: patterns of their names, and the reason.
HIDDEN_MEMBERS = {
    r"zonebloom\.results\.CandidateFragment\.\w+": "PyArrow documents it",
    r"zonebloom\.Dataset\.to_arrow_dataset": "it is deprecated",
    r"zonebloom\.results\.ScanPlan\.html": "notebooks call it",
    r"zonebloom\.Encryption\.\w+": "the index calls it",
    r"zonebloom\.ParquetKeys\.(?!format)\w+": "file readers call it",
    r"zonebloom\.spark\.Indexed\.\w+": "functions that take it call it",
    r"zonebloom\.spark\.IndexManager\.create": "create_index calls it",
    r"zonebloom\.spark\.IndexManager\.[a-z]+[A-Z]\w+": "Hyperspace's name of another method",
}
# The HTML that pdoc writes between the parts of a dotted name.
_DOT_HTML = '</span><span class="o">.</span><span class="n">'
# The HTML of the alias `Filter` written out, which is too long for a signature. The docstring of
# `Dataset.scanner` explains it.
_PREDICATE_HTML = _DOT_HTML.join(["predicates", "ast", r"\w+</span>"])
_FILTER_HTML = rf'<span class="nb">str</span>(?:(?!<span class="param">).)*{_PREDICATE_HTML}'
_pdoc_linkify = pdoc.render.env.filters["linkify"]


def public_names(module: ModuleType) -> list[str]:
    """Return the names in ``__all__`` of a module, or those of its classes if it has none."""
    classes = [name for name, value in vars(module).items() if isinstance(value, type)]
    return list(getattr(module, "__all__", classes))


def is_hidden(name: str) -> bool:
    """Return whether pages leave out a member. For constructors, the template decides."""
    is_constructor = name.endswith("__init__")
    return not is_constructor and any(re.fullmatch(pattern, name) for pattern in HIDDEN_MEMBERS)


def write_pages(folder: Path) -> None:
    """Write a page for each module, and the first page ``index.html``."""
    public_paths: dict[str, str] = {}
    for name in MODULES:
        module = import_module(name)
        vars(module)["__all__"] = public_names(module)
        for public in module.__all__:
            # Set the attributes that a module imports on first use, because pdoc looks only at
            # existing ones.
            value = getattr(module, public)
            setattr(module, public, value)
            if isinstance(value, type):
                # pdoc shows a class as a variable if its own name is not the public one.
                value.__qualname__ = public
                public_paths[f"{value.__module__}.{public}"] = f"{name}.{public}"
                _copy_inherited_members(value)
    for name in DOCSTRING_ONLY_MODULES:
        vars(import_module(name))["__all__"] = []
    pdoc.render.configure(
        docformat="numpy",
        footer_text=f"zonebloom {zonebloom.__version__}",
        show_source=False,
        template_directory=HERE,
    )
    pdoc.render.env.tests["hidden"] = is_hidden
    pdoc.render.env.tests["internal_module"] = _is_internal_module
    pdoc.render.env.filters["linkify"] = _linkify_to(public_paths)
    with warnings.catch_warnings():
        # pdoc warns of type aliases, but shows their names, which say more than their values.
        warnings.filterwarnings("ignore", "Error parsing type annotation")
        # pdoc adds the page of `zonebloom.errors` as part of the package. It must not add one for
        # the module `zonebloom.dataset`, because the public name is that of a function.
        modules = [
            name for name in (*MODULES, *DOCSTRING_ONLY_MODULES) if name != "zonebloom.errors"
        ]
        pdoc.pdoc(*modules, "!zonebloom.dataset", output_directory=folder)


def _copy_inherited_members(cls: type) -> None:
    """Copy public members of internal base classes to a public class, in this process only.

    pdoc documents a member on the page of the class that defines it, and internal bases have no
    page.
    """
    for base in cls.__mro__[1:]:
        if base.__module__.startswith("zonebloom."):
            for name, member in vars(base).items():
                if not name.startswith("_") and name not in vars(cls):
                    setattr(cls, name, member)


def _is_internal_module(module: str, pages: Any) -> bool:
    return module.startswith("zonebloom.") and module not in pages


def _linkify_to(public_paths: dict[str, str]) -> Any:
    """Return a filter for pdoc that shows and links classes by their public names.

    ``public_paths`` has the public dotted name of each class by the name where it is defined.
    """
    path_by_name = {path.rpartition(".")[2]: path for path in public_paths.values()}

    def full_name(match: re.Match[str], module: pdoc.doc.Module) -> str:
        name = match[1]
        return match[0] if module.get(name) else f"<code>{path_by_name.get(name, name)}"

    @pass_context
    def linkify(context: Any, code: str, *args: Any, **options: Any) -> Any:
        code = str(code)
        for defined_path, public_path in public_paths.items():
            code = code.replace(
                defined_path.replace(".", _DOT_HTML), public_path.replace(".", _DOT_HTML)
            )
        code = re.sub(r"<code>(\w+)", lambda match: full_name(match, context["module"]), code)
        # Annotations that are strings name type aliases; show them without quotes.
        code = re.sub(r'class="s1">(?:&#39;|\')([A-Z]\w+)(?:&#39;|\')', r'class="n">\1', code)
        code = re.sub(_FILTER_HTML, '<span class="n">Filter</span>', code)
        return _pdoc_linkify(context, Markup(code), *args, **options)

    return linkify
