"""Indices of another kind than BLOOMFILTER: a tiny kind that keeps the exact keys of each zone."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from helpers import index_folder

import zonebloom as zb
from zonebloom import errors
from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.catalog.folder import read_file
from zonebloom.index import kinds
from zonebloom.index.table import IndexTable, WrittenTable, ZoneRuns
from zonebloom.predicates.ast import Compares

ROWS, ZONE = 100, 16
SCHEMA = pa.schema(
    [
        ("fragment_id", pa.uint64()),
        ("start", pa.uint64()),
        ("length", pa.uint64()),
        ("has_null", pa.bool_()),
        ("keys", pa.list_(pa.uint64())),
    ]
)


class ExactTable(IndexTable):
    """The zones of one segment, each with the sorted hashes of its keys."""

    def __init__(self, path: str, data: pa.Buffer, items: int):
        self.path, self.num_bytes = path, data.size
        table = pa.ipc.open_file(data).read_all()
        if table.schema != SCHEMA:
            raise ValueError("it has other columns")
        ids, starts, lengths, self.has_null = (table[i].to_numpy() for i in range(4))
        self.runs = ZoneRuns.from_zones(ids, starts, lengths, items)
        self.rows = table.to_pylist()
        self._keys = [np.array(keys, dtype=np.uint64) for keys in table["keys"].to_pylist()]

    @property
    def loaded_bytes(self) -> int:
        return self.num_bytes

    def _pairs(self, hashes):
        for zone, keys in enumerate(self._keys):
            positions = np.flatnonzero(np.isin(hashes, keys))
            yield positions, np.full(positions.size, zone)


def write_rows(catalog: Any, path: str, rows: list[dict[str, Any]]) -> WrittenTable:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA) as writer:
        writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
    return WrittenTable(*catalog.write(path, sink.getvalue()), len(rows))


class ExactWriter:
    def __init__(self, catalog: Any, path: str, items: int):
        self.path, self._catalog, self._items = path, catalog, items
        catalog.write(path, b"")
        self._parts: list[Any] = []
        self._rows: list[dict[str, Any]] = []

    def add(self, fragment_id, hashes):
        self._parts.append((hashes.values.copy(), hashes.is_valid()))

    def end_fragment(self, fragment_id):
        values, valid = (np.concatenate(parts) for parts in zip(*self._parts, strict=True))
        for start in range(0, values.size, self._items):
            zone = slice(start, start + self._items)
            keys = np.unique(values[zone][valid[zone]])
            length, has_null = values[zone].size, not valid[zone].all()
            row = dict(fragment_id=fragment_id, start=start, length=length, has_null=has_null)
            self._rows.append({**row, "keys": keys})
        self._parts = []

    def close(self):
        return write_rows(self._catalog, self.path, self._rows)

    def abort(self):
        pass


class ExactSet:
    """An index with the exact set of keys of each zone. It answers =, IN and IS NULL."""

    name = "EXACTSET"

    def __init__(self):
        self.layouts = {"table": "exactset.arrow"}

    def why_not_indexable(self, column_type, column):
        return "compare floats by ranges" if pa.types.is_floating(column_type) else None

    def why_not_answered(self, leaf):
        return "a set has no order" if isinstance(leaf, Compares) else None

    def check_parameters(self, given):
        parameters = {"number_of_items": 8192, **given}
        if len(parameters) > 1:
            raise errors.InvalidArgument("an exact set has only the parameter number_of_items")
        return parameters

    def choose_layout(self, layout, num_zones):
        return "table"

    def create_writer(self, catalog, segment, parameters):
        path = catalog.path(segment, "exactset.arrow")
        return ExactWriter(catalog, path, parameters["number_of_items"])

    def open(self, catalog, segment, parameters, report):
        path = catalog.path(segment.name, segment.file)
        data = read_file(
            catalog.decrypted_filesystem, path, segment.num_bytes, segment.checksum
        )
        return ExactTable(path, data, parameters["number_of_items"])

    def merge(self, catalog, segment, layout, tables):
        rows = [row for table in tables for row in table.rows]
        return write_rows(catalog, catalog.path(segment, self.layouts[layout]), rows)

    def statistics(self, parameters, tables):
        return {"num_keys": sum(len(row["keys"]) for table in tables for row in table.rows)}
