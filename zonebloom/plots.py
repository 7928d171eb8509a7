"""Plots of what indices are and what they save, by matplotlib.

    from zonebloom import plots

    plots.zones_kept(ds, "id = 42")
    plots.bytes_read(ds, "id = 42")
    plots.filters(ds, "id_idx")
    plots.filter_sizes(8192, 0.00057)

Each draws into ``ax``, or into a new figure of pyplot's, and returns the Axes; none shows or saves
anything. Colours are of Okabe and Ito, and no plot needs them to be told apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from zonebloom.base.text import bytes_text
from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS, DEFAULT_ZONE_PROBABILITY
from zonebloom.dataset import Dataset, Filter
from zonebloom.errors import InvalidArgument, MissingDependency
from zonebloom.index.describe import measure_filters
from zonebloom.sbbf.sizing import SIZINGS, size_for
from zonebloom.scan.recheck import Columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bytes_read", "filter_sizes", "filters", "zones_kept"]


def __dir__() -> list[str]:
    return __all__


_BLUE, _ORANGE, _GREY = "#0072b2", "#d55e00", "#c4c4c4"
# Names of more files than this would cover one another.
_MOST_NAMES = 20
_MOST_TITLE = 70
_PROBABILITIES = np.geomspace(1e-6, 0.5, 120)


def zones_kept(dataset: Dataset, filter: Filter, *, ax: Axes | None = None) -> Axes:
    """Zones of each file that a filter keeps and skips; files without an index are hatched.

    Parameters
    ----------
    dataset : Dataset
    filter : as for `Dataset.scanner`
    ax : matplotlib.axes.Axes, optional

    Raises
    ------
    MissingDependency
        Without matplotlib; of all functions here.
    FilterError, InvalidArgument

    Examples
    --------
    >>> from zonebloom import plots
    >>> plots.zones_kept(ds, "id = 42").get_title(loc="left")
    'id = 42: 1 of 30 zones kept'
    """
    plan = dataset.scanner(filter=filter).plan()
    if plan.predicate is None:
        raise InvalidArgument("filter is None, which keeps every zone; give one")
    ax = _axes(ax)
    kept = np.array([each.kept_zones for each in plan.files])
    zones = np.array([each.num_zones for each in plan.files])
    at = np.arange(len(plan.files))
    ax.barh(at, kept, color=_BLUE, label="kept")
    ax.barh(at, zones - kept, left=kept, color=_GREY, label="skipped")
    whole = at[zones == 0]
    if whole.size:
        width = max(zones.max(), 1)
        bars = ax.barh(whole, width, color="none", edgecolor=_ORANGE, hatch="////")
        bars.set_label("no index: not known")
    if len(at) <= _MOST_NAMES:
        ax.set_yticks(at, [each.path for each in plan.files])
    ax.invert_yaxis()
    ax.set_ylabel("file, in scan order")
    ax.set_xlabel("zones")
    ax.locator_params(axis="x", integer=True)
    title = f"{plan.predicate}: {kept.sum():,} of {zones.sum():,} zones kept"
    return _finished(ax, title)


def bytes_read(
    dataset: Dataset, filter: Filter, columns: Columns = None, *, ax: Axes | None = None
) -> Axes:
    """Bytes a read takes with the indices and without them; it is run both ways.

    Parameters
    ----------
    dataset : Dataset
    filter, columns : as for `Dataset.scanner`
    ax : matplotlib.axes.Axes, optional

    Notes
    -----
    An index that is in memory is not read again: open the dataset anew to count its bytes.

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
    data = np.array([each.stats.data_bytes for each in runs if each.stats])
    index = np.array([each.stats.index_bytes for each in runs if each.stats])
    names = ["with indices", "without"]
    ax.barh(names, data, color=_BLUE, label="of data files")
    ax.barh(
        names, index, left=data, color=_ORANGE, hatch="//", edgecolor="white", label="of indices"
    )
    for name, total in zip(names, (data + index).tolist(), strict=True):
        ax.annotate(
            bytes_text(total), (total, name), (4, 0), textcoords="offset points", va="center"
        )
    # Else the end of the longest bar, where another of no length begins, is that of the axis.
    ax.use_sticky_edges = False
    ax.margins(x=0.15)
    ax.set_xlim(left=0)
    ax.invert_yaxis()
    ax.xaxis.set_major_formatter(lambda value, _: bytes_text(round(value)))
    ax.set_xlabel("bytes read")
    return _finished(ax, str(runs[0].plan.predicate or "no filter"))


def filters(dataset: Dataset, name: str, *, ax: Axes | None = None) -> Axes:
    """Fill of each zone's filter, and the false positives to expect of it beside the target.

    Every filter of the index is read.

    Parameters
    ----------
    dataset : Dataset
    name : str
        Of an index.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        Of the fill, percent of bits set. Probabilities are on a logarithmic axis at its right,
        ``ax.figure.axes[-1]``; a filter without a value has none.

    Raises
    ------
    IndexNotFound

    Examples
    --------
    >>> from zonebloom import plots
    >>> plots.filters(ds, "id_idx").get_title(loc="left")
    'id_idx: 30 zones of 100 rows'
    """
    entry = dataset.opened.index_entry(name)
    fill, fpp = measure_filters(dataset.opened.planner.loaded_indices[name].tables())
    ax = _axes(ax)
    right, at, target = ax.twinx(), np.arange(len(fill)), entry.parameters.probability
    ax.plot(at, 100 * fill, "o", color=_BLUE, markersize=3, label="fill (left)")
    expected = np.where(fpp > 0, fpp, np.nan)
    right.semilogy(at, expected, "x", color=_ORANGE, markersize=4, label="false positives (right)")
    right.axhline(target, color=_ORANGE, linestyle="--", label=f"target {target:g} (right)")
    ax.set_ylim(0, 100)
    # In the upper half, as no filter that is large enough is more than half full.
    low, high = min([target, *fpp[fpp > 0]]), max([target, *fpp])
    right.set_ylim(low * low / high / 10, high * 2)
    ax.set_xlabel("zone, in the order of the index")
    ax.set_ylabel("bits set (%)")
    right.set_ylabel("estimated false positive probability")
    _finished(ax, f"{name}: {len(fill):,} zones of {entry.parameters.number_of_items:,} rows")
    lines = [*ax.lines, *right.lines]
    ax.legend(
        handles=lines, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, frameon=False
    )
    return ax


def filter_sizes(
    number_of_items: int = DEFAULT_NUMBER_OF_ITEMS,
    probability: float = DEFAULT_ZONE_PROBABILITY,
    *,
    sizing: Literal["log2", "exact"] = "log2",
    ax: Axes | None = None,
) -> Axes:
    """Size of a zone's filter by the probability of false positives, and the point that is chosen.

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
    chosen = size_for(number_of_items, probability, sizing)
    ax = _axes(ax)
    for each, line, color in zip(SIZINGS, ("--", "-"), (_ORANGE, _BLUE), strict=True):
        sizes = [size_for(number_of_items, p, each) for p in _PROBABILITIES.tolist()]
        steps = "steps-post" if each == "log2" else "default"
        label = f'sizing="{each}"'
        ax.plot(_PROBABILITIES, sizes, line, drawstyle=steps, color=color, label=label)
    ax.plot([probability], [chosen], "o", color="black", markersize=8, label="chosen")
    ax.set_xscale("log")
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(lambda value, _: bytes_text(round(value)))
    ax.set_xlabel("probability of a false positive")
    ax.set_ylabel("filter of a zone (bytes)")
    title = f"{number_of_items:,} values at a probability of {probability:g}: {bytes_text(chosen)}"
    return _finished(ax, title)


def _axes(ax: Axes | None) -> Axes:
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError:
        raise MissingDependency(
            "plots need matplotlib; run pip install 'zonebloom[plots]'"
        ) from None
    return pyplot.subplots(layout="constrained")[1] if ax is None else ax


def _finished(ax: Axes, title: str) -> Axes:
    ax.set_title(title if len(title) <= _MOST_TITLE else title[:_MOST_TITLE] + "…", loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, frameon=False)
    return ax
