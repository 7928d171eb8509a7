"""Test that batches of one column have the values and the order of a scan."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from support.helpers import without_privileges
from support.seams import set_constant

import zonebloom as zb
from zonebloom import errors
from zonebloom.sources import column_batches as columns
from zonebloom.sources.column_batches import Column, ColumnsReader
from zonebloom.sources.source import Fragment, Source

LOCAL = pafs.LocalFileSystem()


def reader_of(path: Path, name: str, wanted: pa.DataType | None = None) -> ColumnsReader:
    schema = pq.read_schema(path)
    names = tuple(name.split("."))
    field_type = wanted
    if field_type is None:
        field_type = schema.field(names[0]).type
        for part in names[1:]:
            field_type = field_type.field(part).type
    source, fragment = Source(schema, None, LOCAL, "", ()), Fragment(str(path), "")
    return ColumnsReader(source, LOCAL, fragment, [Column(names, field_type)])


def values_of(reader: ColumnsReader, split: bool = False) -> list:
    return [
        v for run in reader.runs(split) for (batch,) in reader.read(run) for v in batch.to_pylist()
    ]


@pytest.mark.parametrize("split", [False, True])
def test_values_come_in_row_order_over_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: bool
):
    set_constant(monkeypatch, columns, "_RUN_ROWS", 250)
    set_constant(monkeypatch, columns, "_BATCH_ROWS", 64)
    values = [None if i % 7 == 0 else i for i in range(1000)]
    pq.write_table(pa.table({"a": values, "b": values}), tmp_path / "f", row_group_size=90)
    assert values_of(reader_of(tmp_path / "f", "a"), split) == values


def test_damaged_files_are_named(tmp_path: Path):
    pq.write_table(pa.table({"a": range(10_000)}), tmp_path / "f", compression="snappy")
    data = bytearray((tmp_path / "f").read_bytes())
    reader = reader_of(tmp_path / "f", "a")
    (tmp_path / "f").write_bytes(data[: len(data) // 2])
    with pytest.raises(errors.FragmentUnreadable, match=r"cannot read .*/f: .*repair or remove"):
        values_of(reader)
    (tmp_path / "f").unlink()
    with pytest.raises(errors.FragmentUnreadable, match=r"cannot read .*/f: "):
        values_of(reader)
    data[200:3000] = b"\xff" * 2800
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(errors.FragmentUnreadable, match=r"cannot read .*/f: "):
        values_of(reader)


def test_a_file_without_permission_is_not_to_be_removed():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        for number in range(2):
            pq.write_table(pa.table({"id": [number]}), f"{folder}/data-{number}.parquet")
        os.chmod(f"{folder}/data-1.parquet", 0)
        requests = [
            lambda ds: ds.to_table(),
            lambda ds: ds.to_table(filter="id = 1"),
            lambda ds: ds.lookup("id", [1]),
            lambda ds: ds.create_scalar_index("id", spark=False),
        ]
        with without_privileges():
            for request in requests:
                with pytest.raises(errors.FragmentUnreadable, match="make it readable") as raised:
                    request(zb.dataset(folder, index_dir=f"{folder}/_index"))
                assert "remove" not in str(raised.value)
