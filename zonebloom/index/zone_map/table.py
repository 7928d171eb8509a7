"""Read and write the table of a zone map.

The columns are those of Lance's ZONEMAP: ``min`` and ``max`` of the column's type, which are null
if all values are null or NaN, ``null_count``, ``nan_count``, ``fragment_id``, ``zone_start`` and
``zone_length``. ``max`` is the greatest value that is not NaN. It is null beside a ``min`` if it is
not known. Long strings are cut: ``min`` to a shorter string before it, ``max`` to one after it.

A segment of any kind of index has such a table in ``ranges.arrow``, too, with one zone for each
file: the key ranges. Their bounds are null if the keys are no values of a column.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from zonebloom.base.arrays import to_numpy
from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT
from zonebloom.base.version import require_known_format, with_format_version
from zonebloom.errors import CorruptIndex
from zonebloom.index.table import HashingFile, IndexTable, WrittenTable, ZoneRuns
from zonebloom.index.zone_map.bounds import ZoneBounds
from zonebloom.storage.ipc_layout import open_uncompressed
from zonebloom.values.normal_types import normalized_type

ROWS_KEY = b"rows_per_zone"
_PLACES = "fragment_id", "zone_start", "zone_length"


def zone_map_schema(column_type: pa.DataType, rows_per_zone: int) -> pa.Schema:
    """Return the schema of the table of a column: Lance's, with its metadata."""
    bound = normalized_type(column_type)
    fields = [pa.field("min", bound), pa.field("max", bound)]
    fields += [pa.field(name, pa.uint32(), nullable=False) for name in ("null_count", "nan_count")]
    fields += [pa.field(name, pa.uint64(), nullable=False) for name in _PLACES]
    return pa.schema(fields, {ROWS_KEY: str(rows_per_zone).encode()})


class ZoneMapTable(IndexTable):
    """The bounds of the zones of a segment, in memory.

    Attributes
    ----------
    content : pyarrow.Table
        With the schema of `zone_map_schema`.
    bounds : ZoneBounds
        They tell the zones in which a condition may be true, or false.
    """

    def __init__(self, buffer: pa.Buffer, where: str):
        self.path = where
        self.num_bytes = buffer.size
        self.content = table = read_zone_map(buffer, where)
        self.bounds = ZoneBounds.from_table(table)
        self.has_null = self.bounds.has_null
        ids, starts, lengths = (to_numpy(table[name]) for name in _PLACES)
        items = int(table.schema.metadata[ROWS_KEY])
        self.runs = ZoneRuns.from_zones(ids, starts, lengths, items)


def read_zone_map(
    buffer: pa.Buffer, where: str, column_type: pa.DataType | None = None
) -> pa.Table:
    """Return the table in a file, with bounds of the type of a column if that is given.

    Raise `CorruptIndex` if it is no table of `zone_map_schema`.
    """
    try:
        table = open_uncompressed(buffer).read_all()
        require_known_format(table.schema)
        items = int((table.schema.metadata or {})[ROWS_KEY])
        if not 0 < items <= MAX_ROWS_PER_FRAGMENT:
            raise ValueError(f"its zones claim {items} rows each")
        schema = zone_map_schema(table.schema.field("min").type, items)
        if not table.schema.remove_metadata().equals(schema.remove_metadata()):
            raise ValueError(f"its columns are {', '.join(table.schema.names)}")
        table.validate(full=True)
        if (to_numpy(table["zone_length"]) > MAX_ROWS_PER_FRAGMENT).any():
            raise ValueError("a zone claims more rows than a file has")
        # A string column may have become a large_string column since the build.
        schema = schema if column_type is None else zone_map_schema(column_type, items)
        return table.cast(schema).replace_schema_metadata(schema.metadata).combine_chunks()
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise CorruptIndex(
            f"{where} is not a table of a zone map ({error}); build the index again"
        ) from None


def write_zone_map(sink: HashingFile, tables: Sequence[pa.Table]) -> WrittenTable:
    """Write the content of tables, in order, as one file, and close it."""
    schema = with_format_version(tables[0].schema)
    with sink, pa.ipc.new_file(sink, schema) as writer:
        for table in tables:
            writer.write_table(table.cast(schema).combine_chunks())
    num_zones = sum(table.num_rows for table in tables)
    return WrittenTable(sink.size, sink.checksum.hexdigest(), num_zones)
