"""Plots show the numbers that plans, runs and indices have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from zonebloom import Sbbf
from zonebloom.errors import IndexNotFound

plots = pytest.importorskip("zonebloom.plots")
matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
from matplotlib.figure import Figure  # noqa: E402

ROWS, ZONE, FILES = 1000, 100, 3

pytestmark = pytest.mark.filterwarnings("ignore::zonebloom.errors.StaleIndexWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of three indexed files, with a zone of nulls only, and a newer file."""
    folder = tmp_path_factory.mktemp("plots")
    for number in range(FILES + 1):
        ids = [None if number == 1 and i < ZONE else number * ROWS + i for i in range(ROWS)]
        table = pa.table({"id": pa.array(ids, pa.int64()), "text": ["x" * 50] * ROWS})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=ZONE)
        if number == FILES - 1:
            zb.dataset(folder).create_scalar_index("id", number_of_items=ZONE, spark=False)
    return folder


@pytest.fixture
def ds(folder: Path) -> zb.Dataset:
    return zb.dataset(folder)


@pytest.fixture
def ax():
    """Return the axes of a figure that is not registered with pyplot."""
    return Figure().subplots()


def widths(container) -> list[float]:
    return [bar.get_width() for bar in container]


def labelled(ax) -> bool:
    return bool(
        ax.get_xlabel() and ax.get_ylabel() and ax.get_title(loc="left") and ax.get_legend()
    )


def test_zones_kept_shows_the_zones_of_the_plan(ds: zb.Dataset, ax):
    filter = "id IN (5, 150, 151, 2999)"
    assert plots.zones_kept(ds, filter, ax=ax) is ax
    files = ds.scanner(filter=filter).plan().files
    kept_bars, skipped_bars, unindexed_bars = ax.containers
    assert widths(kept_bars) == [file.kept_zones for file in files] == [2, 0, 1, 0]
    assert widths(skipped_bars) == [8, 10, 9, 0]
    assert [bar.get_x() for bar in skipped_bars] == widths(kept_bars)
    (bar,) = unindexed_bars
    assert bar.get_y() + bar.get_height() / 2 == FILES and bar.get_hatch()
    assert [label.get_text() for label in ax.get_yticklabels()] == [file.path for file in files]
    assert labelled(ax) and ax.get_xlabel() == "zones"
    assert ax.get_title(loc="left").endswith("3 of 30 zones kept")
    ax.figure.savefig("/dev/null", format="png")


def test_bytes_read_shows_the_counted_bytes(folder: Path, ds: zb.Dataset, ax):
    # The first read caches the metadata of the files, so later reads are smaller.
    zb.dataset(folder).to_table(filter="id = 5")
    assert plots.bytes_read(ds, "id = 5", ax=ax) is ax
    fresh, counted = zb.dataset(folder), []
    for uses_index in (True, False):
        fresh.scanner(
            filter="id = 5", use_scalar_index=uses_index, scan_stats_callback=counted.append
        ).to_table()
    data, index = ax.containers
    assert widths(data) == [stats.data_bytes for stats in counted]
    assert widths(index) == [counted[0].index_bytes, 0] and counted[0].index_bytes > 0
    assert [bar.get_x() for bar in index] == widths(data)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["with indices", "without"]
    assert ax.get_xlabel() == "bytes read" and ax.get_title(loc="left") == "id = 5"
    assert ax.xaxis.get_major_formatter()(80_000_000, 0) == "80.0 MB"
    # Labels stand behind the bars' ends, inside the axes.
    assert ax.get_xlim()[0] == 0 and ax.get_xlim()[1] > 1.1 * max(widths(data))


def test_filters_shows_the_fill_of_each_filter(ds: zb.Dataset, ax):
    assert plots.filters(ds, "id_idx", ax=ax) is ax
    right = ax.figure.axes[-1]
    stored = [
        Sbbf.from_bytes(table.filter_words(zone))
        for table in ds.opened.indices["id_idx"].tables()
        for zone in range(len(table))
    ]
    assert len(stored) == FILES * ROWS // ZONE
    fill, (fpp, target) = ax.lines[0].get_ydata(), (line.get_ydata() for line in right.lines)
    np.testing.assert_allclose(fill, [100 * description.fill for description in stored])
    np.testing.assert_allclose(fpp, [description.estimated_fpp or np.nan for description in stored])
    assert np.isnan(fpp).sum() == 1 and set(target) == {0.00057}
    figures = ds.index_statistics("id_idx")
    assert figures["fill_max"] == pytest.approx(max(fill) / 100)
    assert labelled(ax) and ax.get_ylabel() == "bits set (%)"
    assert "probability" in right.get_ylabel() and right.get_yscale() == "log"
    low, high = right.get_ylim()
    assert low < np.nanmin(fpp) and high > 0.00057
    with pytest.raises(IndexNotFound):
        plots.filters(ds, "nope")


@pytest.mark.parametrize("sizing", ["log2", "exact"])
def test_filter_sizes_shows_the_smallest_filters_for_a_probability(sizing: str, ax):
    assert plots.filter_sizes(1000, 0.01, sizing=sizing, ax=ax) is ax
    log2, exact, chosen = (line.get_xydata() for line in ax.lines)
    assert chosen.tolist() == [[0.01, Sbbf(1000, 0.01, sizing=sizing).nbytes]]
    for probability, size in exact.tolist():
        assert size == Sbbf(1000, probability, sizing="exact").nbytes
    assert (log2[:, 1] >= exact[:, 1]).all()
    assert (np.log2(log2[:, 1]) % 1 == 0).all()
    assert labelled(ax) and "bytes" in ax.get_ylabel()
