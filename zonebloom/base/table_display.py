"""Show the tables that our methods return as HTML in Jupyter, and leave other tables as they are.

A ``pyarrow.Table`` cannot be subclassed, and has no HTML of its own. IPython finds formatters by
type, so this module registers one for ``pyarrow.Table``. It answers only for the very objects that
our methods returned, which it remembers by weak references. A mark in the metadata of the schema
would do the same, but it would go into every copy, every comparison and every file written from
the table.

Nothing is registered outside IPython, or if the user has a formatter for these tables.
"""

from __future__ import annotations

import sys
import weakref
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zonebloom.base.display import escape, styled_html
from zonebloom.base.python_values import python_value
from zonebloom.base.text import count_text

_MAX_ROWS = 10
_MAX_COLUMNS = 20
_MAX_CHARACTERS = 100
# Longer cells are wrapped.
_MAX_LINE = 36
_PATH_COLUMN = "path"


def show_in_jupyter(table: pa.Table, root: str | None = None) -> pa.Table:
    """Let Jupyter show a table as HTML, and return the same table.

    Parameters
    ----------
    table : pyarrow.Table
    root : str, optional
        The folder of the dataset, if the column ``path`` of the table contains the paths of its
        files. They are shown relative to this folder.

    Examples
    --------
    >>> orders = pa.table({"id": [1]})
    >>> show_in_jupyter(orders) is orders
    True
    """
    formatter = _session_formatter()
    if formatter is not None:
        formatter.add(table, root)
    return table


def _session_formatter() -> _TableFormatter | None:
    """Return our formatter of the IPython session, or None without one."""
    # A process that has not imported IPython runs no session of it.
    find_session = getattr(sys.modules.get("IPython"), "get_ipython", None)
    session = None if find_session is None else find_session()
    if session is None or session.display_formatter is None:
        return None
    formatters = session.display_formatter.formatters["text/html"]
    try:
        formatter = formatters.lookup_by_type(pa.Table)
    except KeyError:
        formatter = _TableFormatter()
        formatters.for_type(pa.Table, formatter)
    # The user's own formatter stays in use.
    return formatter if isinstance(formatter, _TableFormatter) else None


class _TableFormatter:
    """A formatter of IPython for the tables that were added to it."""

    def __init__(self) -> None:
        # The roots of the living tables, by the id of the table.
        self._roots: dict[int, str | None] = {}

    def add(self, table: pa.Table, root: str | None) -> None:
        if id(table) not in self._roots:
            # Another table may get the same id after this one is freed.
            forget = weakref.finalize(table, self._roots.pop, id(table), None)
            forget.atexit = False
        self._roots[id(table)] = root

    def __call__(self, table: pa.Table) -> str | None:
        if id(table) in self._roots:
            return rows_html(table, self._roots[id(table)])
        # A later pyarrow may have HTML of its own, which IPython would have used without us.
        own_html: Any = getattr(table, "_repr_html_", None)
        return None if own_html is None else own_html()


def rows_html(table: pa.Table, root: str | None = None) -> str:
    """Return the first rows of a table as HTML, with the names and types of its columns.

    ``root`` is as in `show_in_jupyter`.
    """
    fields = list(table.schema)[:_MAX_COLUMNS]
    columns = [
        [_cell_html(field, text, root) for text in _texts(table.column(number).slice(0, _MAX_ROWS))]
        for number, field in enumerate(fields)
    ]
    names = "".join(
        f"<th{_class(field)}>{escape(_cut(field.name))}"
        f'<br><span class="zb-type">{escape(_cut(_type_text(field.type)))}</span></th>'
        for field in fields
    )
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in zip(*columns, strict=True))
    rows = _counted(table.num_rows, "row", _MAX_ROWS)
    caption = f"pyarrow.Table: {rows}, {_counted(table.num_columns, 'column', _MAX_COLUMNS)}"
    return styled_html(
        f'<table class="zb-rows"><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>',
        f'<p class="zb-type">{caption}</p>',
    )


def _counted(count: int, noun: str, limit: int) -> str:
    text = count_text(count, noun)
    return text if count <= limit else f"the first {limit} of {text}"


def _type_text(kind: pa.DataType) -> str:
    # The types of the indices of a dictionary tell a reader of its values nothing.
    return str(kind.value_type if pt.is_dictionary(kind) else kind)


def _class(field: pa.Field, text: str = "") -> str:
    kind = field.type
    if pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind):
        return ' class="zb-n"'
    return ' class="zb-long"' if len(text) > _MAX_LINE else ""


def _cell_html(field: pa.Field, text: str | None, root: str | None) -> str:
    if text is None:
        return f'<td{_class(field)}><span class="zb-type">null</span></td>'
    is_path = root is not None and field.name == _PATH_COLUMN
    cell = text.removeprefix(f"{root.rstrip('/')}/") if root and is_path else text
    if len(cell) > _MAX_CHARACTERS:
        # The end of a path, and the beginning of other texts, distinguishes them best.
        cell = f"…{cell[1 - _MAX_CHARACTERS :]}" if is_path else _cut(cell)
    # The whole text shows when the pointer is over a shortened one.
    title = f' title="{escape(text[:1000])}"' if cell != text else ""
    return f"<td{_class(field, cell)}{title}>{escape(cell)}</td>"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    """Return the values of a column as texts, and None for nulls."""
    if pt.is_temporal(column.type) and not pt.is_duration(column.type):
        # Python's own times would round nanoseconds, and end in the year 9999. Arrow has no texts
        # for intervals and for times in a zone that is not known here.
        with suppress(pa.ArrowException):
            return column.cast(pa.string()).to_pylist()
    return [_value_text(value) for value in column]


def _value_text(scalar: pa.Scalar) -> str | None:
    if pt.is_duration(scalar.type) and scalar.is_valid:
        return f"{scalar.cast(pa.int64()).as_py()} {scalar.type.unit}"
    value = python_value(scalar)
    if isinstance(value, bytes):
        return value[:_MAX_CHARACTERS].hex()
    return None if value is None else str(value)
