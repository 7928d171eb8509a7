"""Read the name and the arguments of a call or operator from sqlglot's tree.

lower(name)                  lower        name
quantity // 2                //           quantity, 2
extract(year FROM ts)        date_part    'year', ts
tags[1]                      []           tags, 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zonebloom.values.literal import Literal, Unanswerable

_OPERATORS = {
    **{"add": "+", "sub": "-", "mul": "*", "div": "/", "intdiv": "//", "mod": "%", "dpipe": "||"},
    "neg": "-",
}
_TRIMS = {"": "trim", "BOTH": "trim", "LEADING": "ltrim", "TRAILING": "rtrim"}


@dataclass(frozen=True, slots=True)
class SqlCall:
    """A call of a function or operator. The arguments are nodes of sqlglot, or literals."""

    name: str
    arguments: tuple[Any, ...]


def read_call(node: Any) -> SqlCall | None:
    """Return the call that a node is, or None if it is something else."""
    key, args = node.key, node.args
    if key in _OPERATORS:
        sides = [args.get(name) for name in ("this", "expression")]
        return SqlCall(_OPERATORS[key], tuple(side for side in sides if side is not None))
    match key:
        case "anonymous":
            name = node.this if isinstance(node.this, str) else node.this.name
            return SqlCall(name.lower(), tuple(node.expressions))
        case "trim":
            name = _TRIMS[str(args.get("position") or "").upper()]
            return SqlCall(name, _present(node, "this", "expression"))
        case "substring":
            return SqlCall("substring", _present(node, "this", "start", "length"))
        case "extract":
            return SqlCall("date_part", (Literal("text", node.this.name), node.expression))
        case "attimezone":
            return SqlCall("timezone", (args["zone"], node.this))
        case "bracket":
            if len(node.expressions) != 1 or node.expressions[0].key == "slice":
                raise Unanswerable("slices of lists are not supported", "write one index: tags[1]")
            return SqlCall("[]", (node.this, node.expressions[0]))
    return None


def _present(node: Any, *names: str) -> tuple[Any, ...]:
    return tuple(node.args[name] for name in names if node.args.get(name) is not None)
