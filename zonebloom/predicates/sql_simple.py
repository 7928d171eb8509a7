"""Parse ``column = literal`` and ``column IN (literals)`` without sqlglot.

Importing sqlglot takes longer than looking up a key.

    tailnum = 'N14228'      "Delay" = -1.5      id IN (1, 2, 3)

Text of any other form is left to sqlglot, for example text with escapes, comments, casts or SQL
keywords.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_COLUMN_NAME = r"""(?P<name>[A-Za-z_][A-Za-z0-9_]*|"[^"\\\x00-\x1f]+"|`[^`\\\x00-\x1f]+`)"""
_SIMPLE_LITERAL = r"(?:-?\d+(?:\.\d+)?|'[^'\\\x00-\x1f]*')"
_CONDITION = re.compile(
    rf" *{_COLUMN_NAME} *(?:= *(?P<one>{_SIMPLE_LITERAL})"
    rf"| [Ii][Nn] *\( *(?P<many>{_SIMPLE_LITERAL}(?: *, *{_SIMPLE_LITERAL})*) *\)) *",
    re.ASCII,
)
_LITERALS_PATTERN = re.compile(_SIMPLE_LITERAL, re.ASCII)

# Words that are not column names unless they are quoted.
_RESERVED = """
all alter analyze and any as asc attach begin between by cache call case cast check cluster
comment commit connect_by_root copy create cross current_catalog current_date current_datetime
current_role current_schema current_time current_timestamp current_user declare default delete
desc describe detach distinct div drop else end escape except exec execute exists explain
export extract false fetch for from full glob grant group having if ilike in inner insert
install intersect interval into is isnull join kill lateral left like limit load localtime
localtimestamp match_recognize merge natural not notnull null offset on optimize or order
outer overlaps partitioned_by pivot pragma prepare prior qualify refresh regexp rename replace
returning revoke right rlike rollback row select semi session_user set show similar some
straight_join struct summarize system_user table tablesample then true truncate try_cast
uncache union unique unknown unpivot update use user using utc_date utc_time utc_timestamp
vacuum values when where window with xor
"""
_RESERVED_WORDS = frozenset(_RESERVED.split())


@dataclass(frozen=True, slots=True)
class SqlNode:
    """A part of a condition, with those attributes of sqlglot's nodes that a translator reads."""

    key: str
    this: Any = None
    expression: SqlNode | None = None
    expressions: tuple[SqlNode, ...] = ()
    is_string: bool = False

    @property
    def args(self) -> Mapping[str, Any]:
        return {}

    @property
    def parts(self) -> list[SqlNode]:
        return [self.this]

    def walk(self) -> tuple[SqlNode, ...]:
        return ()


def parse_simple(text: str) -> SqlNode | None:
    """Return the condition as sqlglot would parse it, or None if it has another form."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        return None
    name = match["name"]
    if name[0] in '"`':
        name = name[1:-1]
    elif name.lower() in _RESERVED_WORDS:
        return None
    column = SqlNode("column", SqlNode("identifier", name))
    if match["one"] is not None:
        return SqlNode("eq", column, _literal_node(match["one"]))
    return SqlNode(
        "in",
        column,
        expressions=tuple(map(_literal_node, _LITERALS_PATTERN.findall(match["many"]))),
    )


def _literal_node(text: str) -> SqlNode:
    if text[0] == "'":
        return SqlNode("literal", text[1:-1], is_string=True)
    if text[0] == "-":
        return SqlNode("neg", SqlNode("literal", text[1:]))
    return SqlNode("literal", text)
