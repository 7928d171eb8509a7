"""Read the deletion vectors of Delta Lake and Iceberg, which store them alike.

Source: Delta's PROTOCOL.md, "Deletion Vector Format", and Iceberg's Puffin spec,
"deletion-vector-v1".
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow.fs as pafs

from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT, RowRanges
from zonebloom.errors import FragmentUnreadable, MissingDependency
from zonebloom.storage.files import file_errors

RESTORE_ADVICE = "restore the file, or rewrite the table"
# A vector is magic and bitmap. In a file: | length of the vector, 4 | vector | CRC, 4 |
_MAGIC = bytes([0xD1, 0xD3, 0x39, 0x64])
# The number of bytes of length and CRC.
FRAME_SIZE = 8


class CachedRead:
    """Mixin that caches what a file contains, and drops the cache when the object is pickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "content"}


@dataclass(eq=False)
class DeletionVector(CachedRead):
    """A 64-bit Roaring bitmap of deleted positions in one data file.

    Attributes
    ----------
    path : str
        The file that holds the vector, or the data file if the table's log holds the vector.
    offset, num_bytes : int
        The place of the vector in the file, with its length and CRC.
    cardinality : int or None
        The number of positions, if the table says it.
    inline : bytes or None
        The vector if the table's log holds it.
    """

    filesystem: pafs.FileSystem
    path: str
    offset: int
    num_bytes: int
    cardinality: int | None = None
    inline: bytes | None = None

    @cached_property
    def content(self) -> RowRanges:
        try:
            from pyroaring import BitMap64
        except ModuleNotFoundError:
            raise MissingDependency(
                "deletion vectors need the package pyroaring; run pip install 'zonebloom[delta]'"
            ) from None
        with file_errors(self.path, RESTORE_ADVICE):
            vector = self._read() if self.inline is None else self.inline
            if not vector.startswith(_MAGIC):
                raise FragmentUnreadable(
                    f"{self.path} holds no deletion vector at byte {self.offset:,}, where the "
                    f"table's metadata expects one; {RESTORE_ADVICE}"
                )
            rows = BitMap64.deserialize(vector[len(_MAGIC) :])
            if rows and rows.max() >= MAX_ROWS_PER_FRAGMENT:
                raise ValueError(f"it deletes row {rows.max():,}")
            if self.cardinality not in (None, len(rows)):
                raise ValueError(
                    f"its deletion vector has {len(rows):,} rows instead of {self.cardinality:,}"
                )
        # A small bitmap can hold billions of rows, so compute only the ends of its ranges.
        next_rows = rows.shift(1)
        starts, stops = rows - next_rows, next_rows - rows
        return RowRanges.from_arrays(
            np.array(starts.to_array(), np.int64), np.array(stops.to_array(), np.int64)
        )

    def _read(self) -> bytes:
        """Return the vector in the file, or nothing if it is damaged."""
        with self.filesystem.open_input_file(self.path) as file:
            # Check the size first, because read_at allocates as many bytes as it is asked for.
            if not 0 <= self.offset <= self.offset + self.num_bytes <= file.size():
                return b""
            blob = file.read_at(self.num_bytes, self.offset)
        vector, crc = blob[4:-4], blob[-4:]
        is_valid = int.from_bytes(blob[:4], "big") == len(vector)
        is_valid &= zlib.crc32(vector) == int.from_bytes(crc, "big")
        return vector if is_valid else b""

    def rows(self) -> RowRanges:
        return self.content
