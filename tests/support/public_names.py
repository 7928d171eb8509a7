"""The public modules and names, and the members of public classes that are not for users."""

from __future__ import annotations

import re
from types import ModuleType

MODULES = (
    "zonebloom",
    "zonebloom.errors",
    "zonebloom.results",
    "zonebloom.spark",
    "zonebloom.plots",
    "zonebloom.exchange.lance",
)
# Members that the reference leaves out: patterns of their names, and the reason. The filters in
# docs/reference leave them out.
HIDDEN_MEMBERS = {
    r"zonebloom\.results\.CandidateFragment\.\w+": "PyArrow documents it",
    r"zonebloom\.results\.ScanPlan\.html": "notebooks call it",
    r"zonebloom\.Encryption\.\w+": "the index calls it",
    r"zonebloom\.ParquetKeys\.(?!format)\w+": "file readers call it",
    r"zonebloom\.spark\.IndexManager\.[a-z]+[A-Z]\w+": "Hyperspace's name of another method",
}


def public_names(module: ModuleType) -> list[str]:
    """Return the names in ``__all__`` of a module, or those of its classes if it has none."""
    classes = [name for name, value in vars(module).items() if isinstance(value, type)]
    shown = [name for name in classes if not name.startswith("_")]
    return list(getattr(module, "__all__", shown))


def is_hidden(name: str) -> bool:
    """Return whether the reference leaves out a member."""
    return any(re.fullmatch(pattern, name) for pattern in HIDDEN_MEMBERS)
