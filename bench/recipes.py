"""The recipes of the notebook on Delta and Iceberg, as functions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NOTEBOOK = Path(__file__).resolve().parent.parent / "notebooks" / "delta_and_iceberg.ipynb"


def recipes() -> dict[str, Callable[..., Any]]:
    """Return ``erase`` and ``upsert``, made by running the cells that import and define them."""
    cells = json.loads(_NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    exec(code[0], names)
    for name in ("erase", "upsert"):
        (cell,) = [source for source in code if source.startswith(f"def {name}(")]
        exec(cell.partition("\n\n\n")[0], names)
    return {name: names[name] for name in ("erase", "upsert")}
