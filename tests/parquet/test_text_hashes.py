"""Test that the kernels hash strings in pages as pyarrow's arrays of them are hashed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zonebloom.sbbf.hashing import hash_array
from zonebloom.sources.column_batches import Column
from zonebloom.sources.source import Fragment, Source
from zonebloom.sources.text_columns import HashedTexts, TextColumn
from zonebloom.storage.file_view import FileView
from zonebloom.storage.store import identities

LOCAL = pafs.LocalFileSystem()
LAYOUTS: dict[str, dict[str, Any]] = {
    "dictionary": {},
    "plain": {"use_dictionary": False, "data_page_size": 300, "write_batch_size": 20},
    "both": {"dictionary_pagesize_limit": 200, "data_page_size": 100, "write_batch_size": 10},
    "version 2": {"data_page_version": "2.0", "compression": "none", "row_group_size": 70},
    "gzip": {"compression": "gzip"},
    "Zstandard": {"compression": "zstd", "data_page_size": 100, "write_batch_size": 10},
    "prefixes": {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
    "indexed": {"write_page_index": True, "write_page_checksum": True, "row_group_size": 70},
}
texts = st.one_of(
    st.none(),
    st.text(max_size=40).map(str.encode),
    st.binary(max_size=20),
    st.sampled_from([b"", b"a", b"a\0", b"ab", b"12345678", b"123456789", b"\xff" * 9, b"\xff"]),
)


def text_column(path: Path, kind: pa.DataType, **view: Any) -> TextColumn | None:
    (identity,) = identities(LOCAL, [str(path)])
    assert identity is not None
    source = Source(pa.schema({"text": kind}), None, LOCAL, str(path.parent), ())
    fragment = Fragment(str(path), path.name, **view)
    return TextColumn.open(source, fragment, identity, Column(("text",), kind))


def written(folder: Path, values: list[bytes | None], kind: pa.DataType, **options: Any) -> Path:
    path = folder / "f.parquet"
    pq.write_table(pa.table({"text": pa.array(values, pa.binary()).cast(kind)}), path, **options)
    return path


def check(hashed: list[HashedTexts], expected: pa.Array) -> None:
    hashes = np.concatenate([part.hashes.values for part in hashed])
    is_valid = np.concatenate([part.hashes.is_valid() for part in hashed])
    reference = hash_array(expected)
    assert is_valid.tolist() == reference.is_valid().tolist()
    assert hashes[is_valid].tolist() == reference.of_valid_rows().tolist()
    assert sum(part.hashes.null_count for part in hashed) == expected.null_count
    ends = [end for part in hashed for end in part.ends]
    values = expected.drop_null().cast(pa.binary()).to_pylist()
    assert (min(ends), max(ends)) == (min(values), max(values)) if values else not ends


@pytest.mark.many
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(texts, min_size=1, max_size=60), repeats=st.integers(1, 8))
def test_hashes_and_ends_equal_those_of_arrays(tmp_path, layout, values, repeats):
    path = written(tmp_path, values * repeats, pa.binary(), **LAYOUTS[layout])
    column = text_column(path, pa.binary())
    assert column is not None
    file = pq.ParquetFile(path)
    for row_group in range(file.num_row_groups):
        hashed = column.hash_row_group(row_group)
        assert hashed is not None
        check(hashed, file.read_row_group(row_group)["text"].combine_chunks())
        assert column.run_of(row_group).row_groups == (row_group,)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary()], ids=str)
def test_all_types_of_strings_are_hashed_over_many_batches(tmp_path, kind):
    values: list[bytes | None] = [f"{i * 7919 % 100_003:030}".encode() for i in range(100_000)]
    values[5000:5010] = [None] * 10
    path = written(tmp_path, values, kind, use_dictionary=False, compression="none")
    column = text_column(path, kind)
    assert column is not None
    hashed = column.hash_row_group(0)
    assert hashed is not None
    assert len(hashed) > 1
    check(hashed, pa.array(values, pa.binary()).cast(kind))


def test_other_types_and_views_are_left_to_pyarrow(tmp_path):
    path = written(tmp_path, [b"a", b"b"], pa.string())
    assert text_column(path, pa.dictionary(pa.int32(), pa.string())) is None
    assert text_column(path, pa.string(), view=FileView()) is None
    pq.write_table(pa.table({"text": [1, 2]}), path)
    assert text_column(path, pa.int64()) is None
    path.write_bytes(b"no Parquet file")
    assert text_column(path, pa.string()) is None


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_pages_are_left_to_pyarrow_or_have_all_rows(tmp_path, data):
    """Whatever the bytes are, the process does not crash."""
    values: list[bytes | None] = [f"text {i % 60}".encode() for i in range(200)]
    layout = data.draw(st.sampled_from(sorted(LAYOUTS)))
    path = written(tmp_path, [*values, None], pa.string(), **LAYOUTS[layout])
    file = bytearray(path.read_bytes())
    body = len(file) - 8 - int.from_bytes(file[-8:-4], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(4, body - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(file)
    column = text_column(path, pa.string())
    assert column is not None
    for row_group in range(pq.ParquetFile(path).num_row_groups):
        hashed = column.hash_row_group(row_group)
        if hashed is not None:
            num_rows = sum(part.hashes.values.size for part in hashed)
            assert num_rows == column.run_of(row_group).num_rows


def test_a_file_that_changed_is_left_to_pyarrow(tmp_path):
    path = written(tmp_path, [b"a"] * 9, pa.string())
    column = text_column(path, pa.string())
    assert column is not None
    with path.open("r+b") as file:
        file.truncate(20)
    assert column.hash_row_group(0) is None
