"""Warnings go to the code that called the package, or into a list that collects them."""

import inspect
import threading
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.helpers import index_folder

import zonebloom as zb
from zonebloom.base.notices import collected_warnings, warn
from zonebloom.building.segments import drop_indices
from zonebloom.errors import HiddenColumnsWarning, StaleIndexWarning, ZoneBloomWarning


def test_a_warning_names_the_line_that_called_the_package(tmp_path):
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "a.parquet")
    zb.dataset(tmp_path).create_scalar_index("id", spark=False)
    pq.write_table(pa.table({"id": range(10, 20)}), tmp_path / "b.parquet")
    for call in ("count_rows", "search", "to_table"):
        with pytest.warns(StaleIndexWarning) as caught:
            getattr(zb.dataset(tmp_path), call)(filter="id = 15")
        assert [warning.filename for warning in caught] == [__file__], call


def line_of(function, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def test_a_build_and_a_drop_name_the_line_of_the_caller(tmp_path):
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": range(10), "later": range(10)}), tmp_path / "b.parquet")
    ds = zb.dataset(tmp_path)
    with pytest.warns(HiddenColumnsWarning) as caught:
        ds.create_scalar_index("id", spark=False)
    with pytest.warns(HiddenColumnsWarning) as refreshed:
        pq.write_table(pa.table({"id": [1], "later": [2]}), tmp_path / "c.parquet")
        zb.dataset(tmp_path).optimize.optimize_indices(spark=False)
    for segment in index_folder(tmp_path).glob("segments/*"):
        (segment / "notes.txt").touch()
    with pytest.warns(ZoneBloomWarning, match="segments of id_idx are left in") as dropped:
        drop_indices(ds.opened.catalog, ["id_idx"])
    lines = {
        text: line_of(test_a_build_and_a_drop_name_the_line_of_the_caller, text)
        for text in ("ds.create_scalar_index", "optimize_indices", "drop_indices(ds")
    }
    for warned, line in zip((caught, refreshed, dropped), lines.values(), strict=True):
        assert {(warning.filename, warning.lineno) for warning in warned} == {(__file__, line)}


def test_warnings_are_collected_for_one_thread_alone():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with collected_warnings() as issued:
            warn(ZoneBloomWarning("first"))
            with collected_warnings() as inner:
                warn(ZoneBloomWarning("inner"))
            warn(ZoneBloomWarning("last"))
            raised = []

            def warn_elsewhere():
                try:
                    warn(ZoneBloomWarning("elsewhere"))
                except ZoneBloomWarning as warning:
                    raised.append(str(warning))

            thread = threading.Thread(target=warn_elsewhere)
            thread.start()
            thread.join()
        with pytest.raises(ZoneBloomWarning, match="after"):
            warn(ZoneBloomWarning("after"))
    assert [str(warning) for warning in issued] == ["first", "last"]
    assert [str(warning) for warning in inner] == ["inner"]
    assert raised == ["elsewhere"]
