"""Draw the plots of the report as PNG files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.measures import IN_SIZES, Result, in_name
from bench.scale import MERGED, ScaleResult
from bench.tables import count_text, shares_of_scans, size_text, time_text

# The competitors of one family share a colour, and differ by their markers.
_STYLES = {
    "zonebloom": ("#1f5fbf", "o"),
    "zonebloom, by a filter": ("#1f5fbf", "D"),
    "zonebloom HASH": ("#1f5fbf", "*"),
    "Lance BLOOMFILTER": ("#d9731a", "o"),
    "Lance ZONEMAP": ("#d9731a", "s"),
    "Lance BTREE": ("#d9731a", "^"),
    "DuckDB, filters in files": ("#2e8b57", "o"),
    "DataFusion, filters in files": ("#2e8b57", "s"),
    "DuckDB scan": ("#7a7a7a", "o"),
    "Polars scan": ("#7a7a7a", "s"),
    "pyarrow scan": ("#7a7a7a", "^"),
}
_PANELS_PER_ROW = 3
# Colour-blind readers can distinguish these colours, and the markers differ, too.
_LAYOUTS = {
    "recommended": ("#0072b2", "o"),
    "pyarrow": ("#d55e00", "s"),
    "Polars": ("#009e73", "^"),
    "DuckDB": ("#cc79a7", "D"),
    "Spark": ("#e69f00", "v"),
    "tpchgen-cli": ("#56b4e9", "P"),
}
SHARES, GROWTH = "against-scans.png", "growth.png"


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
    count: int, width: float, height: float, per_row: int = _PANELS_PER_ROW, **options: Any
) -> tuple[Any, list[Any]]:
    """Return a figure, and the axes of its panels."""
    columns = min(count, per_row)
    rows = -(-count // columns)
    figure, axes_grid = _pyplot().subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False, **options
    )
    axes = list(axes_grid.flat)
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def _label_powers_of_ten(axis: Any, text: Callable[[float], str]) -> None:
    """Put ticks at powers of ten, with texts that are easy to read."""
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


def plot_in_sizes(all_results: Sequence[Result], path: Path) -> Path:
    """Plot time by the number of keys in an IN, in one panel for each data set and layout."""
    sets = list(dict.fromkeys(result.data for result in all_results))
    figure, axes = _panels(len(sets), 4.6, 3.4, sharey=True, sharex=True)
    handles: dict[str, Any] = {}
    for ax, data in zip(axes, sets, strict=True):
        for result in (result for result in all_results if result.data == data):
            color, marker = _STYLES[result.competitor]
            style = {"o": "-", "s": "--", "D": "-."}.get(marker, ":")
            is_ours = result.competitor.startswith("zonebloom")
            sizes = [count for count in IN_SIZES if in_name(count) in result.warm]
            (handles[result.competitor],) = ax.plot(
                sizes,
                [result.warm[in_name(count)].wall for count in sizes],
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
        _label_powers_of_ten(ax.xaxis, lambda value: f"{value:,.0f}")
        _label_powers_of_ten(ax.yaxis, time_text)
        ax.tick_params(labelbottom=True, labelleft=True)
        ax.set_xlabel("keys of IN (of rows drawn at random)")
    _legend_above(figure, list(handles.values()), list(handles), 4)
    return _save(figure, path)


def plot_shares(all_results: Sequence[Result], path: Path) -> Path:
    """Plot the time of a lookup divided by that of the best scan, by the number of keys.

    There is one panel for each data set in the layout of pyarrow, and one line for each layout.
    """
    shares = shares_of_scans(all_results)
    sets = list(dict.fromkeys(data.name for data in shares if data.layout == "pyarrow"))
    figure, axes = _panels(len(sets), 2.6, 3.2, 4, sharey=True, sharex=True)
    handles: dict[str, Any] = {}
    for ax, name in zip(axes, sets, strict=True):
        ax.axhline(1, color="black", linewidth=1)
        for data in (data for data in shares if data.name == name):
            color, marker = _LAYOUTS[data.layout]
            (handles[data.layout],) = ax.plot(
                list(shares[data]), list(shares[data].values()), color=color, marker=marker
            )
        ax.set_title(name, fontsize=10, loc="left")
        ax.set_xscale("log")
        ax.set_yscale("log")
        _label_powers_of_ten(ax.xaxis, count_text)
        _label_powers_of_ten(ax.yaxis, lambda value: f"{value:g}")
        ax.tick_params(labelbottom=True)
        ax.set_xlabel("keys looked up")
    axes[0].set_ylabel("time / best scan's time")
    _legend_above(figure, list(handles.values()), list(handles), len(handles))
    return _save(figure, path)


_GROWTH: tuple[tuple[str, Callable[[ScaleResult], float | None], Callable[[float], str]], ...] = (
    ("first lookup, cold: time", lambda result: result.cold_seconds, time_text),
    ("first lookup, cold: read from disk", lambda result: result.cold_storage_bytes, size_text),
    ("first lookup, cold: memory", lambda result: result.cold_peak_bytes, size_text),
    ("one key, warm", lambda result: result.warm_seconds, time_text),
    (
        "batch of keys, half present, keys/s",
        lambda result: result.batch_keys_per_second,
        count_text,
    ),
    ("index on disk", lambda result: result.index_bytes, size_text),
)


def plot_growth(all_results: Sequence[ScaleResult], folder: Path) -> Path:
    """Plot lookups in the index alone by the rows that it covers, with one line for each layout."""
    figure, axes = _panels(len(_GROWTH), 4.4, 3.1, sharex=True)
    styles = {
        "table": ("#1f5fbf", "o"),
        "buckets": ("#2e8b57", "^"),
        MERGED: ("#7fb89a", "v"),
    }
    handles: dict[str, Any] = {}
    for ax, (title, value_of, text) in zip(axes, _GROWTH, strict=True):
        for layout in dict.fromkeys(result.layout for result in all_results):
            results = [result for result in all_results if result.layout == layout]
            points = [(result.rows, value_of(result)) for result in results if value_of(result)]
            (handles[layout],) = ax.plot(
                [rows for rows, _ in points],
                [value for _, value in points],
                color=styles[layout][0],
                marker=styles[layout][1],
                linewidth=2,
            )
        ax.set_title(title, fontsize=10.5, loc="left")
        ax.set_xscale("log")
        ax.set_yscale("log")
        _label_powers_of_ten(ax.xaxis, count_text)
        _label_powers_of_ten(ax.yaxis, text)
        low, high = ax.get_ylim()
        # Show at least two powers of ten, so that a flat line does not look steep.
        if high / low < 100:
            middle = (low * high) ** 0.5
            ax.set_ylim(middle / 10, middle * 10)
        ax.tick_params(labelbottom=True)
        ax.set_xlabel("rows")
    labels = [f"{layout} layout" for layout in handles]
    _legend_above(figure, list(handles.values()), labels, len(handles))
    return _save(figure, folder / GROWTH)
