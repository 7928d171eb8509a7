"""What a writer of an index gets of consecutive rows of a fragment, and what such zones answer."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import pyarrow as pa

from zonebloom.predicates.ast import LeafPredicate
from zonebloom.sbbf.hashing import Hashes, RowHashes


class ColumnValues(NamedTuple):
    """The values of a column, without dictionaries and extension types."""

    array: pa.Array

    @property
    def num_rows(self) -> int:
        return len(self.array)

    @property
    def null_count(self) -> int:
        return self.array.null_count

    @property
    def num_bytes(self) -> int:
        return self.array.nbytes


class ValueQuestion(NamedTuple):
    """A condition on a column of a type, which is asked of an index that compares values."""

    leaf: LeafPredicate
    column_type: pa.DataType


ZonePart: TypeAlias = Hashes | RowHashes | ColumnValues
