"""Commit delete files to Iceberg tables, which pyiceberg reads only in part and never writes.

Source: Iceberg's spec, "Delete Formats", and the Puffin spec.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from pyroaring import BitMap64

POSITIONS = pa.schema(
    [
        pa.field(
            "file_path", pa.string(), nullable=False, metadata={b"PARQUET:field_id": b"2147483546"}
        ),
        pa.field("pos", pa.int64(), nullable=False, metadata={b"PARQUET:field_id": b"2147483545"}),
    ]
)


class _DeletesWriter(ManifestWriterV2):
    def content(self):
        return ManifestContent.DELETES

    @property
    def version(self):
        # Data files of this version have the fields of deletion vectors.
        return 3

    @property
    def _meta(self):
        return {**super()._meta, "content": "deletes", "format-version": "2"}

    def new_writer(self):
        from pyiceberg.avro.file import AvroOutputFile

        return AvroOutputFile(
            output_file=self._output_file,
            file_schema=self._with_partition(3),
            record_schema=self._with_partition(3),
            schema_name="manifest_entry",
            metadata=self._meta,
        )


class _AddDeletes(_FastAppendFiles):
    """A snapshot that adds delete files and leaves manifests out."""

    dropped: frozenset[str] = frozenset()

    def _manifests(self):
        file = self._added_data_files[0]
        writer = _DeletesWriter(
            self._transaction.table_metadata.specs()[file.spec_id],
            self._transaction.table_metadata.schema(),
            self.new_manifest_output(),
            self._snapshot_id,
            self._compression,
        )
        with writer:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=file,
            )
            writer.add(entry)
        existing = self._existing_manifests()
        remaining = [
            manifest for manifest in existing if manifest.manifest_path not in self.dropped
        ]
        return [writer.to_manifest_file(), *remaining]


def add_delete_file(
    table,
    path: Path,
    record_count: int,
    *,
    partition=(),
    spec_id=None,
    dropped=(),
    **data_file_fields,
) -> None:
    """Commit an existing delete file, and drop manifests in the same commit."""
    file = DataFile.from_args(
        _table_format_version=3,
        file_path=path.as_uri(),
        partition=Record(*partition),
        record_count=record_count,
        file_size_in_bytes=path.stat().st_size,
        **{"file_format": FileFormat.PARQUET, **data_file_fields},
    )
    file.spec_id = table.spec().spec_id if spec_id is None else spec_id
    with (
        table.transaction() as transaction,
        _AddDeletes(Operation.APPEND, transaction, table.io) as update,
    ):
        update.dropped = frozenset(dropped)
        update.append_data_file(file)


def delete_positions(
    table, folder: Path, positions: dict[str, list[int]], **data_file_fields
) -> None:
    """Write a file of positions in data files, in the order of the spec."""
    pairs = sorted((path, row) for path, rows in positions.items() for row in rows)
    data = pa.table(
        {"file_path": [path for path, _ in pairs], "pos": [row for _, row in pairs]},
        schema=POSITIONS,
    )
    path = folder / f"{uuid.uuid4()}-deletes.parquet"
    pq.write_table(data, path)
    content = DataFileContent.POSITION_DELETES
    add_delete_file(table, path, len(pairs), content=content, **data_file_fields)


def delete_equal(table, folder: Path, columns: dict[str, list], **data_file_fields) -> None:
    """Write an equality delete file. It deletes rows with the same values in all columns."""
    schema = table.schema()
    fields = [schema.find_field(name) for name in columns]
    arrow = table.schema().as_arrow()
    data = pa.table(
        [pa.array(values, arrow.field(name).type) for name, values in columns.items()],
        schema=pa.schema(
            [
                pa.field(
                    # Names in the file have no meaning, so use other ones.
                    f"k{field.field_id}",
                    arrow.field(field.name).type,
                    metadata={"PARQUET:field_id": str(field.field_id)},
                )
                for field in fields
            ]
        ),
    )
    path = folder / f"{uuid.uuid4()}-equal.parquet"
    pq.write_table(data, path)
    add_delete_file(
        table,
        path,
        data.num_rows,
        content=DataFileContent.EQUALITY_DELETES,
        equality_ids=[field.field_id for field in fields],
        **data_file_fields,
    )


def _bitmap(rows: list[int] | BitMap64) -> BitMap64:
    return rows if isinstance(rows, BitMap64) else BitMap64(sorted(rows))


def delete_by_vector(
    table,
    folder: Path,
    location: str,
    rows: list[int] | BitMap64,
    before: str | None = None,
    **data_file_fields,
) -> str:
    """Replace the deletion vector in the manifest ``before``. Return the new manifest's path."""
    body = bytes([0xD1, 0xD3, 0x39, 0x64]) + _bitmap(rows).serialize()
    blob = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    # Put a blob of another data file first.
    other = b"PFA1" + blob
    footer = {
        "blobs": [
            {
                "type": "deletion-vector-v1",
                "fields": [],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": offset,
                "length": len(blob),
                "properties": {"referenced-data-file": path, "cardinality": str(len(rows))},
            }
            for offset, path in ((4, "elsewhere"), (len(other), location))
        ]
    }
    payload = json.dumps(footer).encode()
    tail = b"PFA1" + payload + struct.pack("<i", len(payload)) + bytes(4) + b"PFA1"
    path = folder / f"{uuid.uuid4()}-deletes.puffin"
    path.write_bytes(other + blob + tail)
    add_delete_file(
        table,
        path,
        len(rows),
        dropped=() if before is None else (before,),
        content=DataFileContent.POSITION_DELETES,
        file_format=FileFormat.PUFFIN,
        referenced_data_file=location,
        content_offset=len(other),
        content_size_in_bytes=len(blob),
        **data_file_fields,
    )
    newest = table.current_snapshot().manifests(table.io)
    return newest[0].manifest_path
