"""What is known of where a file's bytes lie: schema, row groups, column chunks, pages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf column of the schema, in the order of column chunks.

    Attributes
    ----------
    path : tuple of str
    field : int
        Which top-level field it is under.
    physical_type : int
        As in parquet.thrift.
    repeated : bool
        Whether a row can hold more or fewer than one value.
    """

    path: tuple[str, ...]
    field: int
    physical_type: int
    repeated: bool


# Compared by identity: what is cached by a schema must not hash all of a wide one.
@dataclass(frozen=True, slots=True, eq=False)
class FileSchema:
    """The schema of a file, its parts as the bytes they are written as.

    Attributes
    ----------
    elements : tuple of bytes
        Encoded SchemaElements, depth first, the root first.
    fields : tuple of (int, int)
        For each top-level field, the range of its elements.
    names : tuple of str
        Names of the top-level fields.
    leaves : tuple of Leaf
    field_leaves : tuple of range
        For each top-level field, the numbers of its leaves.
    arrow_schema : bytes or None
        The "ARROW:schema" entry of the metadata.
    version : int
    created_by : bytes or None
    """

    elements: tuple[bytes, ...]
    fields: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    leaves: tuple[Leaf, ...]
    field_leaves: tuple[range, ...]
    arrow_schema: bytes | None
    version: int
    created_by: bytes | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One column chunk.

    Attributes
    ----------
    physical_type, codec : int
        As in parquet.thrift.
    encodings : tuple of int
    num_values : int
    start, stop : int
        All its pages, dictionary included.
    data_start : int
        Its first data page.
    index_start, index_bytes : int
        Its OffsetIndex; 0 bytes when it has none.
    """

    physical_type: int
    codec: int
    encodings: tuple[int, ...]
    num_values: int
    start: int
    stop: int
    data_start: int
    index_start: int
    index_bytes: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one row group, and its chunks in the order of the leaves."""

    first_row: int
    num_rows: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Footer:
    """A footer, as far as page reads need it."""

    schema: FileSchema
    row_groups: tuple[RowGroup, ...]
    num_rows: int


@dataclass(frozen=True, slots=True)
class Pages:
    """The data pages of one chunk.

    Attributes
    ----------
    starts, sizes : int64 array, shape (n,)
        Where each page lies in the file, header included.
    first_rows : int64 array, shape (n + 1,)
        First row of each page in its row group, and the group's number of rows.
    """

    starts: np.ndarray
    sizes: np.ndarray
    first_rows: np.ndarray
