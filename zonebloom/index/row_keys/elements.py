"""Hash the elements of lists and the entries of maps, and the literals that they are compared with.

An element has the hash of a column of its type. The hash of an entry is XXH64 of the hash of its
key and the hash of its value, each as 8 bytes, little-endian. Null elements and null values of an
entry have none, because they equal nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base.arrays import to_numpy, unwrap_extensions
from zonebloom.sbbf.hashing import Hashes, RowHashes, hash_array
from zonebloom.values.columns import find_leaf_type
from zonebloom.values.normal_types import decoded_type

_NO_HASHES = np.empty(0, dtype=np.uint64)


def element_type(list_type: Any, field: Sequence[str]) -> pa.DataType | None:
    """Return the type of the elements of a list, or of a field of its structs. None if unknown."""
    has_elements = (
        *(pt.is_list, pt.is_large_list, pt.is_fixed_size_list),
        *(pt.is_list_view, pt.is_large_list_view),
    )
    if not any(test(list_type) for test in has_elements):
        return None
    if not field:
        return list_type.value_type
    element = decoded_type(list_type.value_type)
    if not pt.is_struct(element):
        return None
    return find_leaf_type(pa.schema(list(element)), field)


def hash_elements(lists: Any, field: Sequence[str]) -> RowHashes:
    """Return the hashes of the elements of each list, or of a field of its structs."""
    lists = unwrap_extensions(lists)
    offsets, elements = _flatten(lists)
    for name in field:
        elements = pc.call_function(
            "struct_field", [unwrap_extensions(elements)], pc.StructFieldOptions([name])
        )
    return _by_row(lists, offsets, hash_array(elements))


def _flatten(lists: Any) -> tuple[np.ndarray, pa.Array]:
    """Return offsets, int64, and the elements from the first to the last offset."""
    if not len(lists):
        # Arrow lets empty arrays have no offsets.
        return np.zeros(1, dtype=np.int64), pa.array([], lists.type.value_type)
    if pt.is_list_view(lists.type) or pt.is_large_list_view(lists.type):
        # PyArrow casts list views to offsets that are wrong for null and empty lists.
        lengths = to_numpy(pc.call_function("list_value_length", [lists]).fill_null(0))
        return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), lists.flatten()
    if pt.is_fixed_size_list(lists.type):
        lists = lists.cast(pa.large_list(lists.type.value_field))
    offsets = to_numpy(lists.offsets).astype(np.int64)
    return offsets, lists.values.slice(offsets[0], offsets[-1] - offsets[0])


def hash_entries(maps: Any) -> RowHashes:
    """Return the hashes of the entries of each map."""
    maps = unwrap_extensions(maps)
    if not len(maps):
        return RowHashes(_NO_HASHES, np.empty(0, dtype=np.int64), np.empty(0, dtype=bool))
    offsets = to_numpy(maps.offsets).astype(np.int64)
    start, length = offsets[0], offsets[-1] - offsets[0]
    keys = hash_array(maps.keys.slice(start, length))
    items = hash_array(maps.items.slice(start, length))
    values = hash_of_hashes([keys.values, items.values])
    return _by_row(
        maps, offsets, Hashes(values, items.validity, items.validity_offset, items.null_count)
    )


def _by_row(lists: Any, offsets: np.ndarray, hashes: Hashes) -> RowHashes:
    positions = offsets - offsets[0]
    if hashes.null_count:
        positions = np.concatenate([[0], np.cumsum(hashes.is_valid())])[positions]
    is_null = to_numpy(lists.is_null())
    return RowHashes(hashes.of_valid_rows(), positions[1:], is_null)


def hash_of_hashes(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return XXH64 of the hashes at each position, uint64."""
    from zonebloom.sbbf import xxh64

    joined = np.ascontiguousarray(np.stack(parts, axis=1))
    hashes = np.empty(joined.shape[0], dtype=np.uint64)
    if hashes.size:
        xxh64.hash_stride(joined.ctypes.data, joined.shape[1] * joined.itemsize, hashes)
    return hashes


def products_of_hashes(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return XXH64 of each choice of one hash of each part, uint64."""
    choices = np.meshgrid(*parts)
    return hash_of_hashes([choice.ravel() for choice in choices])
