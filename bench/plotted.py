"""The report's plots, as PNG files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.measures import ABSENT, IN_SIZES, Measured, in_name
from bench.scale import Scaled
from bench.tables import count_text, shares_of_scans, size_text, time_text

# Families share a colour, and members of one differ by marker.
_STYLES = {
    "zonebloom": ("#1f5fbf", "o"),
    "zonebloom, by a filter": ("#1f5fbf", "D"),
    "zonebloom sliced": ("#1f5fbf", "s"),
    "zonebloom exact size": ("#1f5fbf", "^"),
    "Lance BLOOMFILTER": ("#d9731a", "o"),
    "Lance ZONEMAP": ("#d9731a", "s"),
    "Lance BTREE": ("#d9731a", "^"),
    "DuckDB, filters in files": ("#2e8b57", "o"),
    "DataFusion, filters in files": ("#2e8b57", "s"),
    "DuckDB scan": ("#7a7a7a", "o"),
    "Polars scan": ("#7a7a7a", "s"),
    "pyarrow scan": ("#7a7a7a", "^"),
}
_KINDS = (
    ("first lookup, cold", "v", lambda each: each.first.seconds if each.first else None),
    ("one key, warm", "o", lambda each: each.warm[in_name(1)].wall),
    ("absent key, warm", "x", lambda each: each.warm[ABSENT].wall),
)
_PANELS_A_ROW = 3
# Told apart by the colour-blind, and by their markers.
_LAYOUTS = {
    "recommended": ("#0072b2", "o"),
    "pyarrow": ("#d55e00", "s"),
    "Polars": ("#009e73", "^"),
    "DuckDB": ("#cc79a7", "D"),
    "Spark": ("#e69f00", "v"),
    "tpchgen-cli": ("#56b4e9", "P"),
}
SHARES = "against-scans.png"


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "font.size": 10,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#dddddd",
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    return pyplot


def _panels(
    count: int, width: float, height: float, a_row: int = _PANELS_A_ROW, **shared: Any
) -> tuple[Any, list[Any]]:
    columns = min(count, a_row)
    rows = -(-count // columns)
    figure, axes = _pyplot().subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False, **shared
    )
    flat = list(axes.flat)
    for unused in flat[count:]:
        unused.set_visible(False)
    return figure, flat[:count]


def _scaled_axis(axis: Any, text: Callable[[float], str]) -> None:
    """Ticks at powers of ten, as a reader would say them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_formatter(NullFormatter())


def _legend_above(figure: Any, handles: Any, labels: Any, columns: int) -> None:
    rows = -(-len(labels) // columns)
    inches = 0.1 + 0.24 * rows
    figure.tight_layout(rect=(0, 0, 1, 1 - inches / figure.get_figheight()))
    figure.legend(handles, labels, loc="upper center", ncol=columns, frameon=False)


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    _pyplot().close(figure)
    return path


def plot_latency(measured: Sequence[Measured], folder: Path) -> Path:
    """Each competitor's time for one key, cold and warm; a panel a data set."""
    sets = list(dict.fromkeys(each.data.name for each in measured))
    figure, axes = _panels(len(sets), 4.6, 3.4, sharey=True, sharex=True)
    names = list(dict.fromkeys(each.competitor for each in measured))
    for ax, data in zip(axes, sets, strict=True):
        found = {each.competitor: each for each in measured if each.data.name == data}
        for at, name in enumerate(names):
            if name not in found:
                continue
            values = [of(found[name]) for *_, of in _KINDS]
            known = [value for value in values if value]
            color = _STYLES[name][0]
            ax.plot([min(known), max(known)], [at, at], color=color, alpha=0.3, linewidth=2)
            for (_, marker, _), value in zip(_KINDS, values, strict=True):
                if value:
                    ax.plot(value, at, marker, color=color, markersize=6)
        ax.set_title(data, fontsize=10.5, loc="left")
        ax.set_xscale("log")
        _scaled_axis(ax.xaxis, time_text)
        ax.tick_params(labelbottom=True)
        ax.set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], marker=marker, color="black", linestyle="") for _, marker, _ in _KINDS
    ]
    _legend_above(figure, handles, [label for label, *_ in _KINDS], len(_KINDS))
    return _save(figure, folder / "latency.png")


def plot_in_sizes(measured: Sequence[Measured], path: Path) -> Path:
    """Time by the number of keys of an IN; a panel a data set of a layout."""
    sets = list(dict.fromkeys(each.data for each in measured))
    figure, axes = _panels(len(sets), 4.6, 3.4, sharey=True, sharex=True)
    handles: dict[str, Any] = {}
    for ax, data in zip(axes, sets, strict=True):
        for each in (each for each in measured if each.data == data):
            color, marker = _STYLES[each.competitor]
            style = {"o": "-", "s": "--", "D": "-."}.get(marker, ":")
            is_ours = each.competitor.startswith("zonebloom")
            sizes = [count for count in IN_SIZES if in_name(count) in each.warm]
            (handles[each.competitor],) = ax.plot(
                sizes,
                [each.warm[in_name(count)].wall for count in sizes],
                color=color,
                marker=marker,
                linestyle=style,
                markersize=5,
                linewidth=2.2 if is_ours else 1.3,
                zorder=3 if is_ours else 2,
            )
        ax.set_title(f"{data.name}, {data.layout}", fontsize=10.5, loc="left")
        ax.set_xscale("log")
        ax.set_yscale("log")
        _scaled_axis(ax.xaxis, lambda value: f"{value:,.0f}")
        _scaled_axis(ax.yaxis, time_text)
        ax.tick_params(labelbottom=True, labelleft=True)
        ax.set_xlabel("keys of IN (of rows drawn at random)")
    _legend_above(figure, list(handles.values()), list(handles), 4)
    return _save(figure, path)


def plot_shares(measured: Sequence[Measured], path: Path) -> Path:
    """What a lookup takes of the best scan's time by its number of keys; a panel a data set that
    was written as pyarrow does by default, a line a layout."""
    found = shares_of_scans(measured)
    sets = list(dict.fromkeys(each.name for each in found if each.layout == "pyarrow"))
    figure, axes = _panels(len(sets), 2.6, 3.2, 4, sharey=True, sharex=True)
    handles: dict[str, Any] = {}
    for ax, name in zip(axes, sets, strict=True):
        ax.axhline(1, color="black", linewidth=1)
        for data in (each for each in found if each.name == name):
            color, marker = _LAYOUTS[data.layout]
            (handles[data.layout],) = ax.plot(
                list(found[data]), list(found[data].values()), color=color, marker=marker
            )
        ax.set_title(name, fontsize=10, loc="left")
        ax.set_xscale("log")
        ax.set_yscale("log")
        _scaled_axis(ax.xaxis, count_text)
        _scaled_axis(ax.yaxis, lambda value: f"{value:g}")
        ax.tick_params(labelbottom=True)
        ax.set_xlabel("keys looked up")
    axes[0].set_ylabel("time / best scan's time")
    _legend_above(figure, list(handles.values()), list(handles), len(handles))
    return _save(figure, path)


_GROWTH: tuple[tuple[str, Callable[[Scaled], float | None], Callable[[float], str]], ...] = (
    ("first lookup, cold: time", lambda each: each.cold_seconds, time_text),
    ("first lookup, cold: read from disk", lambda each: each.cold_storage_bytes, size_text),
    ("first lookup, cold: memory", lambda each: each.cold_peak_bytes, size_text),
    ("one key, warm", lambda each: each.warm_seconds, time_text),
    ("batch of absent keys, keys/s", lambda each: each.batch_keys_per_second, count_text),
    ("index on disk", lambda each: each.index_bytes, size_text),
)


def plot_growth(scaled: Sequence[Scaled], folder: Path) -> Path:
    """Lookups in the index alone by the rows it covers; a line a layout."""
    figure, axes = _panels(len(_GROWTH), 4.4, 3.1, sharex=True)
    colors = {"table": "#1f5fbf", "sliced": "#c2372e"}
    handles: dict[str, Any] = {}
    for ax, (title, of, text) in zip(axes, _GROWTH, strict=True):
        for layout in dict.fromkeys(each.layout for each in scaled):
            points = [(each.rows, of(each)) for each in scaled if each.layout == layout]
            known = [(rows, value) for rows, value in points if value]
            (handles[layout],) = ax.plot(
                [rows for rows, _ in known],
                [value for _, value in known],
                marker="o" if layout == "table" else "s",
                color=colors[layout],
                linewidth=2,
            )
        ax.set_title(title, fontsize=10.5, loc="left")
        ax.set_xscale("log")
        ax.set_yscale("log")
        _scaled_axis(ax.xaxis, count_text)
        _scaled_axis(ax.yaxis, text)
        low, high = ax.get_ylim()
        # At least two decades, or a flat line would look steep.
        if high / low < 100:
            middle = (low * high) ** 0.5
            ax.set_ylim(middle / 10, middle * 10)
        ax.tick_params(labelbottom=True)
        ax.set_xlabel("rows")
    labels = [f"{layout} layout" for layout in handles]
    _legend_above(figure, list(handles.values()), labels, len(handles))
    return _save(figure, folder / "growth.png")
