"""``column = literal`` and ``column IN (literals)``, read without sqlglot: to load it takes longer
than to look a key up.

    tailnum = 'N14228'      "Delay" = -1.5      id IN (1, 2, 3)

Whatever is not plainly of this form is sqlglot's to read: escapes, comments, casts, words of SQL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NAME = r"""(?P<name>[A-Za-z_][A-Za-z0-9_]*|"[^"\\\x00-\x1f]+"|`[^`\\\x00-\x1f]+`)"""
_LITERAL = r"(?:-?\d+(?:\.\d+)?|'[^'\\\x00-\x1f]*')"
_CONDITION = re.compile(
    rf" *{_NAME} *(?:= *(?P<one>{_LITERAL})"
    rf"| [Ii][Nn] *\( *(?P<many>{_LITERAL}(?: *, *{_LITERAL})*) *\)) *",
    re.ASCII,
)
_EACH = re.compile(_LITERAL, re.ASCII)

# Not read as names of columns where they stand unquoted.
_SQL = """
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
_WORDS = frozenset(_SQL.split())


@dataclass(frozen=True, slots=True)
class SqlNode:
    """A part of a condition, with what a walker asks of sqlglot's nodes."""

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
    """The condition, as sqlglot would parse it; None when it is not of the form."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        return None
    name = found["name"]
    if name[0] in '"`':
        name = name[1:-1]
    elif name.lower() in _WORDS:
        return None
    column = SqlNode("column", SqlNode("identifier", name))
    if found["one"] is not None:
        return SqlNode("eq", column, _literal(found["one"]))
    return SqlNode("in", column, expressions=tuple(map(_literal, _EACH.findall(found["many"]))))


def _literal(text: str) -> SqlNode:
    if text[0] == "'":
        return SqlNode("literal", text[1:-1], is_string=True)
    if text[0] == "-":
        return SqlNode("neg", SqlNode("literal", text[1:]))
    return SqlNode("literal", text)
