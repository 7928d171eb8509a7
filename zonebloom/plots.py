"""Plot the filters of indices, and what lookups save by them, with matplotlib.

    from zonebloom import plots

    plots.zones_kept(ds, "id = 42")
    plots.bytes_read(ds, "id = 42")
    plots.filters(ds, "id_idx")
    plots.filter_sizes(8192, 0.00057)

Each function draws into ``ax``, or into a new pyplot figure, and returns the Axes. None of them
shows or saves the figure. The colours are those of Okabe and Ito, and each plot can be read without
colours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from zonebloom.base.text import bytes_text
from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS
from zonebloom.errors import InvalidArgument, MissingDependency
from zonebloom.facade.dataset import Dataset
from zonebloom.index.zone_bloom.kind import ZONE_BLOOM, measure_filters
from zonebloom.reading import Filter
from zonebloom.sbbf.sizing import DEFAULT_ZONE_PROBABILITY, SIZINGS, size_for
from zonebloom.scan.recheck import Columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bytes_read", "filter_sizes", "filters", "zones_kept"]


def __dir__() -> list[str]:
    return __all__


_BLUE, _ORANGE, _GREY = "#0072b2", "#d55e00", "#c4c4c4"
# The names of more files than this would overlap.
_MAX_FILE_NAMES = 20
_MAX_TITLE_LENGTH = 70
_PROBABILITIES = np.geomspace(1e-6, 0.5, 120)


def zones_kept(dataset: Dataset, filter: Filter, *, ax: Axes | None = None) -> Axes:
    """Plot the zones of each file that a filter keeps and skips. Hatch files without an index.

    Parameters
    ----------
    dataset : Dataset
    filter : as for `Dataset.scanner`
    ax : matplotlib.axes.Axes, optional

    Raises
    ------
    MissingDependency
        If matplotlib is not installed. All functions of this module raise it.
    FilterError, InvalidArgument

    Examples
    --------
    >>> from zonebloom import plots
    >>> plots.zones_kept(ds, "id = 42").get_title(loc="left")
    'id = 42: 1 of 30 zones kept'
    """
    plan = dataset.scanner(filter=filter).plan()
    if plan.predicate is None:
        raise InvalidArgument("filter is None, which keeps every zone; give a filter")
    ax = _axes(ax)
    kept_zones = np.array([file.kept_zones for file in plan.files])
    num_zones = np.array([file.num_zones for file in plan.files])
    rows = np.arange(len(plan.files))
    ax.barh(rows, kept_zones, color=_BLUE, label="kept")
    ax.barh(rows, num_zones - kept_zones, left=kept_zones, color=_GREY, label="skipped")
    rows_without_index = rows[num_zones == 0]
    if rows_without_index.size:
        width = max(num_zones.max(), 1)
        bars = ax.barh(rows_without_index, width, color="none", edgecolor=_ORANGE, hatch="////")
        bars.set_label("no index: not known")
    if len(rows) <= _MAX_FILE_NAMES:
        ax.set_yticks(rows, [file.path for file in plan.files])
    ax.invert_yaxis()
    ax.set_ylabel("file, in scan order")
    ax.set_xlabel("zones")
    ax.locator_params(axis="x", integer=True)
    title = f"{plan.predicate}: {kept_zones.sum():,} of {num_zones.sum():,} zones kept"
    return _add_title_and_legend(ax, title)


def bytes_read(
    dataset: Dataset, filter: Filter, columns: Columns = None, *, ax: Axes | None = None
) -> Axes:
    """Plot the bytes that a scan reads with the indices and without them. Run it both ways.

    Parameters
    ----------
    dataset : Dataset
    filter, columns : as for `Dataset.scanner`
    ax : matplotlib.axes.Axes, optional

    Notes
    -----
    An index in memory is not read again. To count its bytes, open a new dataset.

    Examples
    --------
    >>> from zonebloom import plots
    >>> plots.bytes_read(zb.dataset("orders"), "id = 42").get_xlabel()
    'bytes read'
    """
    ax = _axes(ax)
    runs = [
        dataset.scanner(columns, filter, use_scalar_index=uses_index).analyze_plan()
        for uses_index in (True, False)
    ]
    data = np.array([run.stats.data_bytes for run in runs if run.stats])
    index = np.array([run.stats.index_bytes for run in runs if run.stats])
    names = ["with indices", "without"]
    ax.barh(names, data, color=_BLUE, label="of data files")
    ax.barh(
        names, index, left=data, color=_ORANGE, hatch="//", edgecolor="white", label="of indices"
    )
    for name, total in zip(names, (data + index).tolist(), strict=True):
        ax.annotate(
            bytes_text(total), (total, name), (4, 0), textcoords="offset points", va="center"
        )
    # An empty bar begins at the end of the longest bar, which makes that a sticky edge. Without
    # this setting the axis would end there and leave no space for the labels.
    ax.use_sticky_edges = False
    ax.margins(x=0.15)
    ax.set_xlim(left=0)
    ax.invert_yaxis()
    ax.xaxis.set_major_formatter(lambda value, _: bytes_text(round(value)))
    ax.set_xlabel("bytes read")
    return _add_title_and_legend(ax, str(runs[0].plan.predicate or "no filter"))


def filters(dataset: Dataset, name: str, *, ax: Axes | None = None) -> Axes:
    """Plot fill and expected false positive probability of each zone's filter, and the target.

    This function reads every filter of the index.

    Parameters
    ----------
    dataset : Dataset
    name : str
        The name of an index of kind BLOOMFILTER.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the fill, in percent of bits set. Probabilities are on a logarithmic axis at the
        right, ``ax.figure.axes[-1]``. An empty filter has no probability.

    Raises
    ------
    IndexNotFound
    InvalidArgument
        If the index is of another kind.

    Examples
    --------
    >>> from zonebloom import plots
    >>> plots.filters(ds, "id_idx").get_title(loc="left")
    'id_idx: 30 zones of 100 rows'
    """
    entry = dataset.opened.index_entry(name)
    if entry.kind != ZONE_BLOOM.name:
        raise InvalidArgument(
            f"index {name!r} is of kind {entry.kind!r}, which has no filters of zones; name an "
            f"index of kind {ZONE_BLOOM.name!r}"
        )
    fill, fpp = measure_filters(dataset.opened.indices[name].tables())
    ax = _axes(ax)
    right, zones, target = ax.twinx(), np.arange(len(fill)), entry.parameters["probability"]
    ax.plot(zones, 100 * fill, "o", color=_BLUE, markersize=3, label="fill (left)")
    expected = np.where(fpp > 0, fpp, np.nan)
    label = "false positives (right)"
    right.semilogy(zones, expected, "x", color=_ORANGE, markersize=4, label=label)
    right.axhline(target, color=_ORANGE, linestyle="--", label=f"target {target:g} (right)")
    ax.set_ylim(0, 100)
    # A filter that is large enough is at most half full. Draw the probabilities in the upper half,
    # so that they do not overlap the fills.
    low, high = min([target, *fpp[fpp > 0]]), max([target, *fpp])
    right.set_ylim(low * low / high / 10, high * 2)
    ax.set_xlabel("zone, in the order of the index")
    ax.set_ylabel("bits set (%)")
    right.set_ylabel("estimated false positive probability")
    title = f"{name}: {len(fill):,} zones of {entry.number_of_items:,} rows"
    return _add_title_and_legend(ax, title, handles=[*ax.lines, *right.lines])


def filter_sizes(
    number_of_items: int = DEFAULT_NUMBER_OF_ITEMS,
    probability: float = DEFAULT_ZONE_PROBABILITY,
    *,
    sizing: Literal["log2", "exact"] = "log2",
    ax: Axes | None = None,
) -> Axes:
    """Plot the size of a zone's filter against its false positive probability.

    A point marks the given parameters.

    Parameters
    ----------
    number_of_items, probability, sizing : as for `Dataset.create_scalar_index`
    ax : matplotlib.axes.Axes, optional

    Examples
    --------
    >>> from zonebloom import plots
    >>> plots.filter_sizes().get_title(loc="left")
    '8,192 values at a probability of 0.00057: 32.8 kB'
    """
    num_bytes = size_for(number_of_items, probability, sizing)
    ax = _axes(ax)
    styles = zip(SIZINGS, ("--", "-"), (_ORANGE, _BLUE), strict=True)
    for plotted_sizing, line_style, color in styles:
        sizes = [size_for(number_of_items, p, plotted_sizing) for p in _PROBABILITIES.tolist()]
        draw_style = "steps-post" if plotted_sizing == "log2" else "default"
        label = f'sizing="{plotted_sizing}"'
        ax.plot(_PROBABILITIES, sizes, line_style, drawstyle=draw_style, color=color, label=label)
    ax.plot([probability], [num_bytes], "o", color="black", markersize=8, label="chosen")
    ax.set_xscale("log")
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(lambda value, _: bytes_text(round(value)))
    ax.set_xlabel("probability of a false positive")
    ax.set_ylabel("filter of a zone (bytes)")
    size = bytes_text(num_bytes)
    title = f"{number_of_items:,} values at a probability of {probability:g}: {size}"
    return _add_title_and_legend(ax, title)


def _axes(ax: Axes | None) -> Axes:
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError:
        raise MissingDependency(
            "plots need matplotlib; run pip install 'zonebloom[plots]'"
        ) from None
    return pyplot.subplots(layout="constrained")[1] if ax is None else ax


def _add_title_and_legend(ax: Axes, title: str, **legend: Any) -> Axes:
    is_long = len(title) > _MAX_TITLE_LENGTH
    ax.set_title(title[:_MAX_TITLE_LENGTH] + "…" if is_long else title, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, frameon=False, **legend)
    return ax
