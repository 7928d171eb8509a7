"""Display objects: as one line by `repr`, as text in a terminal, as HTML in Jupyter.

The HTML loads nothing and runs no code. Text has the colour of the page, so it is legible on light
and dark ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from zonebloom.base.text import TextTable, cell_text, numeric_columns, table_text

# A selector that repeats a class has precedence over Jupyter's own rules.
_STYLE = """<style>
.zonebloom {overflow-x: auto; font-size: .93em; line-height: 1.35}
.zonebloom p, .zonebloom ul, .zonebloom pre {margin: .3em 0}
.zonebloom ul {padding-left: 1.4em}
.zonebloom pre {white-space: pre-wrap; font-family: var(--jp-code-font-family, monospace)}
.zonebloom.zonebloom table {margin: .4em 0; border-collapse: collapse; table-layout: auto}
.zonebloom.zonebloom :is(th, td) {text-align: left; padding: .2em .6em .2em 0}
.zonebloom.zonebloom .zb-n {text-align: right; white-space: nowrap}
</style>"""


class Displayed:
    """Base class of objects that are displayed as the lines of their `str`.

    Their `repr` is the first of these lines.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{(str(self).splitlines() or [''])[0]}>"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # IPython prefers a class's own `__repr__` to an inherited `_repr_pretty_`.
        cls._repr_pretty_ = Displayed._repr_pretty_

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return styled_html(lines_html(str(self)))


ListItem = TypeVar("ListItem")


class DisplayedList(Displayed, list[ListItem], Generic[ListItem]):
    """A list that is displayed as a table, whose headers and rows a function returns."""

    def __init__(
        self,
        items: Iterable[ListItem],
        table: Callable[[Sequence[ListItem]], TextTable],
        if_empty: str,
    ):
        super().__init__(items)
        self._table, self._if_empty = table, if_empty

    def __repr__(self) -> str:
        return list.__repr__(self)

    def __str__(self) -> str:
        return table_text(*self._table(self)) if self else self._if_empty

    def _repr_html_(self) -> str:
        content = table_html(*self._table(self)) if self else lines_html(self._if_empty)
        return styled_html(content)


class DisplayedDict(Displayed, dict[str, Any]):
    """A dictionary that is displayed as a table of names and values."""

    def __repr__(self) -> str:
        return dict.__repr__(self)

    def __str__(self) -> str:
        return table_text(["figure", "value"], [[name, cell_text(self[name])] for name in self])

    def _repr_html_(self) -> str:
        return styled_html(table_html(["figure", "value"], list(self.items())))


def styled_html(*parts: str) -> str:
    """Join pieces of HTML into one piece that includes its style sheet."""
    return f'<div class="zonebloom">{_STYLE}{"".join(parts)}</div>'


def escape(text: str) -> str:
    # The entities of HTML take a millisecond to import, and most processes show none.
    import html

    return html.escape(text)


def title_html(text: str) -> str:
    return f"<p><strong>{escape(text)}</strong></p>" if text else ""


def lines_html(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def list_html(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def table_html(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    right = numeric_columns(headers, rows)

    def line(tag: str, cells: Sequence[object]) -> str:
        kinds = [f'{tag} class="zb-n"' if is_right else tag for is_right in right]
        texts = [escape(cell_text(cell)) for cell in cells]
        inside = (f"<{kind}>{text}</{tag}>" for kind, text in zip(kinds, texts, strict=True))
        return f"<tr>{''.join(inside)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', headers)}</thead><tbody>{body}</tbody></table>"
