"""Display objects: as one line by `repr`, as text in a terminal, as HTML in Jupyter.

The HTML loads nothing and runs no code. Text has the colour of the page, so it is legible on light
and dark ones. The other colours (of Okabe and Ito) follow Jupyter's theme, or the system's. Kept
rows are a full block, skipped rows a thin line, and rows without an index are hatched, so that
nobody needs the colours, and every picture has a text beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from zonebloom.base.text import TextTable, cell_text, numeric_columns, table_text

_MAX_STRIPS = 20
# With more zones than this, the lines between them would merge into a grey area.
_MAX_ZONE_LINES = 80
# The number of columns of a strip. A narrower area is drawn one column wide, so that it is visible.
_STRIP_COLUMNS = 250

_LIGHT = "--zb-kept: #0072b2; --zb-whole: #d55e00"
_DARK = "--zb-kept: #56b4e9; --zb-whole: #e69f00"
# A selector that repeats a class has precedence over Jupyter's own rules.
_STYLE = f"""<style>
.zonebloom {{{_LIGHT}; --zb-rest: rgba(128, 128, 128, .45)}}
@media (prefers-color-scheme: dark) {{.zonebloom {{{_DARK}}}}}
[data-jp-theme-light=true] .zonebloom, .vscode-light .zonebloom {{{_LIGHT}}}
[data-jp-theme-light=false] .zonebloom, .vscode-dark .zonebloom {{{_DARK}}}
.zonebloom {{overflow-x: auto; font-size: .93em; line-height: 1.35}}
.zonebloom p, .zonebloom ul, .zonebloom pre {{margin: .3em 0}}
.zonebloom ul {{padding-left: 1.4em}}
.zonebloom pre {{white-space: pre-wrap; font-family: var(--jp-code-font-family, monospace)}}
.zonebloom.zonebloom table {{margin: .4em 0; border-collapse: collapse; table-layout: auto}}
.zonebloom.zonebloom :is(th, td) {{text-align: left; padding: .2em .6em .2em 0}}
.zonebloom.zonebloom .zb-n {{text-align: right; white-space: nowrap}}
.zonebloom.zonebloom .zb-wide {{width: 100%; table-layout: fixed}}
.zonebloom .zb-wide td {{width: 38%; overflow-wrap: anywhere; vertical-align: middle}}
.zonebloom .zb-wide td:first-child {{width: 24%}}
.zonebloom.zonebloom .zb-rows :is(th, td) {{padding-right: 1.4em; vertical-align: top}}
.zonebloom .zb-rows td {{white-space: nowrap}}
.zonebloom .zb-rows .zb-long {{white-space: normal; min-width: 18em; max-width: 36em;
 overflow-wrap: anywhere}}
.zonebloom .zb-type {{font-weight: normal; opacity: .7}}
.zonebloom svg {{display: block; width: 100%; min-width: 7em; height: .9em}}
.zonebloom .zb-legend span {{margin-right: 1.4em; white-space: nowrap}}
.zonebloom .zb-legend svg {{display: inline-block; width: 1.6em; min-width: 0;
 margin-right: .4em; vertical-align: -.1em}}
.zb-kept {{fill: var(--zb-kept)}}
.zb-rest {{fill: var(--zb-rest)}}
.zb-whole {{fill: var(--zb-whole); fill-opacity: .35}}
.zb-hatch, .zb-cut {{stroke-width: 1px; vector-effect: non-scaling-stroke; stroke: #888}}
.zb-hatch {{stroke: var(--zb-whole)}}
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


class DisplayedSections(Displayed):
    """Base class of objects that are displayed as lines and tables, as text and as HTML."""

    __slots__ = ()

    def _sections(self) -> Sequence[str | TextTable]:
        """Return the lines and the tables, from top to bottom."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(
            part if isinstance(part, str) else table_text(*part) for part in self._sections()
        )

    def _repr_html_(self) -> str:
        return styled_html(
            *(
                lines_html(part) if isinstance(part, str) else table_html(*part)
                for part in self._sections()
            )
        )


ListItem = TypeVar("ListItem")


class DisplayedList(DisplayedSections, list[ListItem], Generic[ListItem]):
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

    def _sections(self) -> Sequence[str | TextTable]:
        return [self._table(self) if self else self._if_empty]


class DisplayedDict(Displayed, dict[str, Any]):
    """A dictionary that is displayed as a table of names and values."""

    def __repr__(self) -> str:
        return dict.__repr__(self)

    def __str__(self) -> str:
        return table_text(["figure", "value"], [[name, cell_text(self[name])] for name in self])

    def _repr_html_(self) -> str:
        return styled_html(table_html(["figure", "value"], list(self.items())))


# The starts and the stops of ranges, shape (n,) each.
Bounds = tuple[np.ndarray, np.ndarray]
NO_BOUNDS: Bounds = np.empty(0), np.empty(0)


class Strip(NamedTuple):
    """A picture of a length, such as the rows of a file, with its description in words.

    ``kept`` are the ranges that are read, and ``unindexed`` those that no index covers.
    """

    name: str
    words: str
    length: int
    kept: Bounds = NO_BOUNDS
    unindexed: Bounds = NO_BOUNDS
    zone_rows: int = 0

    @property
    def is_skipped(self) -> bool:
        return not (self.kept[0].size or self.unindexed[0].size)


def bounds_up_to(stop: int) -> Bounds:
    """Return the bounds of the one range from 0 to ``stop``, or of none if it is empty."""
    return (np.zeros(1), np.full(1, stop)) if stop else NO_BOUNDS


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


def pictures_html(files: Sequence[Strip], bars: Iterable[Strip] = ()) -> str:
    """Draw a strip for each file, and then the bars.

    If there are many files, the first ones that are read have strips of their own, and all others
    share one.
    """
    strips = files
    if len(files) > _MAX_STRIPS:
        strips = [file for file in files if not file.is_skipped][:_MAX_STRIPS]
        drawn = set(map(id, strips))
        strips.append(_summary_strip([file for file in files if id(file) not in drawn]))
    body = "".join(
        f"<tr><td>{escape(strip.name)}</td><td>{_svg(strip)}</td>"
        f"<td>{escape(strip.words)}</td></tr>"
        for strip in (*strips, *bars)
    )
    legend = "".join(f"<span>{_svg(strip, 250)}{strip.words}</span>" for strip in _LEGEND)
    legend = f'<p class="zb-legend">{legend}</p>' if files else ""
    return f'<table class="zb-wide"><tbody>{body}</tbody></table>{legend}' if body else ""


def _summary_strip(files: Sequence[Strip]) -> Strip:
    """Return one strip for many files, in which each file has the length 1."""
    unindexed_files = np.flatnonzero([file.unindexed[0].size for file in files])
    kept_files = np.flatnonzero([file.kept[0].size for file in files])
    num_skipped = len(files) - len(kept_files) - len(unindexed_files)
    counts = {"skipped": num_skipped, "kept": len(kept_files)}
    counts["not indexed"] = len(unindexed_files)
    words = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    bounds = (kept_files, kept_files + 1), (unindexed_files, unindexed_files + 1)
    return Strip(f"{len(files):,} more files", words, len(files), *bounds)


def _svg(strip: Strip, hatch: int = 20) -> str:
    """Draw a strip. Kept ranges are full blocks on a thin line, unindexed ones are hatched."""
    shapes = '<rect class="zb-rest" y="4" width="1000" height="4"/>'
    hatched = list(_drawn_blocks(strip.unindexed, strip.length))
    lines = [x for start, width in hatched for x in range(start, start + width, hatch)]
    cuts = range(strip.zone_rows, strip.length, strip.zone_rows) if strip.zone_rows else range(0)
    cuts = cuts if len(cuts) < _MAX_ZONE_LINES else range(0)
    paths = {
        "zb-whole": [f"M{x} 0h{width}v12h-{width}z" for x, width in hatched],
        "zb-kept": [
            f"M{x} 0h{width}v12h-{width}z" for x, width in _drawn_blocks(strip.kept, strip.length)
        ],
        "zb-hatch": [f"M{x} 0v12" for x in lines],
        "zb-cut": [f"M{1000 * cut / strip.length:.1f} 0v12" for cut in cuts],
    }
    for kind, path in paths.items():
        shapes += f'<path class="{kind}" d="{"".join(path)}"/>' if path else ""
    label = escape(f"{strip.name}: {strip.words}")
    return (
        '<svg viewBox="0 0 1000 12" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}"><title>{label}</title>{shapes}</svg>'
    )


def _drawn_blocks(ranges: Bounds, length: int) -> Iterable[tuple[int, int]]:
    """Yield the position and width of ranges in a strip. Ranges that touch become one block."""
    first, last = (np.asarray(ends, np.int64) * _STRIP_COLUMNS for ends in ranges)
    steps = np.zeros(_STRIP_COLUMNS + 2, dtype=np.int64)
    starts = np.clip(first // max(length, 1), 0, _STRIP_COLUMNS - 1)
    stops = np.clip(-(-last // max(length, 1)), starts + 1, _STRIP_COLUMNS)
    np.add.at(steps, starts + 1, 1)
    np.add.at(steps, stops + 1, -1)
    edges = np.flatnonzero(np.diff(np.cumsum(steps) > 0))
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield start * 1000 // _STRIP_COLUMNS, (stop - start) * 1000 // _STRIP_COLUMNS


_LEGEND = (
    Strip("key", "may hold rows", 1, bounds_up_to(1)),
    Strip("key", "skipped", 1),
    Strip("key", "not covered by an index", 1, unindexed=bounds_up_to(1)),
)
