"""Warnings go to the code that called the package, or into a list that collects them."""

import threading
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from zonebloom.base.notices import collected_warnings, warn
from zonebloom.errors import StaleIndexWarning, ZoneBloomWarning


def test_a_warning_names_the_line_that_called_the_package(tmp_path):
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "a.parquet")
    zb.dataset(tmp_path).create_scalar_index("id", spark=False)
    pq.write_table(pa.table({"id": range(10, 20)}), tmp_path / "b.parquet")
    for call in ("count_rows", "search", "to_table"):
        with pytest.warns(StaleIndexWarning) as caught:
            getattr(zb.dataset(tmp_path), call)(filter="id = 15")
        assert [warning.filename for warning in caught] == [__file__], call


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
