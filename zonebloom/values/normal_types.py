"""Normalise Arrow types: variants of one type become one type that can be hashed or compared.

Each use of a type needs other steps, so each step is a function, and three types compose them.

    step                   what it replaces                                            depth
    decoded_type           dictionaries by their values                                outermost
    hashed_type            dictionaries, and extension types by their storage          outermost
    widened_type           types for which PyArrow has few kernels                     outermost
    without_views          views by large strings and large binary                     every
    with_32_bit_offsets    large strings, large binary and large lists                 every
    with_64_bit_offsets    strings and binary                                          outermost

    type                   steps                                                       used for
    comparable_type        decoded_type, UUIDs by bytes, widened_type                  expressions
    normalized_type        hashed_type, widened_type                                   keys
    key_range_type         normalized_type, durations by integers                      key ranges

Steps that look only at the outermost type leave the types inside lists, maps and structs alone.
Elements that an index holds are taken out first. PyArrow moves the others with their rows, so the
steps on views and offsets look at every depth. A leaf of a struct is a column of its own to all
callers.

No step changes a run-end-encoded type: PyArrow can neither compare nor gather it, so it is not
indexed. Nothing here hashes a type, because extension types that are defined in Python have no
hash.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.types as pt

from zonebloom.base.arrays import decode_dictionary, unwrap_extensions

# By type id, because types with an extension type have no hash.
_LARGE_BY_VIEW = {pa.string_view().id: pa.large_string(), pa.binary_view().id: pa.large_binary()}
_WIDE_BY_NARROW = {pa.float16().id: pa.float32(), **_LARGE_BY_VIEW}
_SMALL_DECIMAL_IDS = {pa.decimal32(1).id, pa.decimal64(1).id}
# Extension types and dictionaries. The type of a UUID stands for all extension types.
_WRAPPER_IDS = {pa.uuid().id, pa.dictionary(pa.int8(), pa.int8()).id}
_LARGE_BY_SMALL = {pa.string().id: pa.large_string(), pa.binary().id: pa.large_binary()}
# The ids of common types that `normalized_type` returns as they are. Their values need no step.
NORMALIZED_IDS = {
    type_.id
    for type_ in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    )
}
_SMALL_BY_LARGE = {pa.large_string().id: pa.string(), pa.large_binary().id: pa.binary()}


def decoded_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary type; other types as they are.

    Extension types stay, for callers that show the type, or that recognise a UUID.
    """
    return decoded_type(type_.value_type) if isinstance(type_, pa.DictionaryType) else type_


def hashed_type(type_: pa.DataType) -> pa.DataType:
    """Return the type whose bytes are hashed: extension storage, dictionary values, or itself.

    Views and widths stay, because the hash is one of bytes at the width of the type.

    >>> hashed_type(pa.dictionary(pa.int8(), pa.uuid()))
    FixedSizeBinaryType(fixed_size_binary[16])
    """
    while type_.id in _WRAPPER_IDS:
        is_dictionary = isinstance(type_, pa.DictionaryType)
        type_ = type_.value_type if is_dictionary else type_.storage_type
    return type_


def hashed_values(values: pa.Array) -> pa.Array:
    """Return values as `hashed_type`. Views in a dictionary become large strings or binary."""
    values = unwrap_extensions(values)
    if not isinstance(values, pa.DictionaryArray):
        return values
    dictionary = hashed_values(values.dictionary)
    if dictionary.type != values.type.value_type:
        values = pa.DictionaryArray.from_arrays(values.indices, dictionary)
    return decode_dictionary(values)


def widened_type(type_: pa.DataType) -> pa.DataType:
    """Return a type that holds all values of a type, and for which PyArrow has all kernels.

    These are comparison, `is_in`, `index_in`, `min_max` and sorting. A view becomes large, because
    a batch of views may have more than 2 GiB.

    >>> widened_type(pa.decimal32(5, 2)), widened_type(pa.string())
    (Decimal128Type(decimal128(5, 2)), DataType(string))
    """
    type_id = type_.id
    if type_id in _SMALL_DECIMAL_IDS:
        return pa.decimal128(type_.precision, type_.scale)
    return _WIDE_BY_NARROW.get(type_id, type_)


def is_opaque_extension(type_: pa.DataType) -> bool:
    """Return whether a decoded type is an extension type other than UUID.

    Engines that know the extension may compare its values in another way than their storage, and
    their storage may have other nulls. UUIDs are compared as their bytes.
    """
    return isinstance(type_, pa.BaseExtensionType) and not isinstance(type_, pa.UuidType)


def comparable_type(type_: pa.DataType) -> pa.DataType:
    """Return a type that PyArrow's expressions can compare, and that holds all values of a type.

    An extension type stays if it is opaque: PyArrow refuses to compare it. For a dictionary type
    PyArrow itself would choose a type that is too small.
    """
    type_ = decoded_type(type_)
    return widened_type(type_.storage_type if isinstance(type_, pa.UuidType) else type_)


def normalized_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which keys are compared with the values of a column.

    Keys equal the stored bytes, so extension types are compared by their storage.
    """
    return type_ if type_.id in NORMALIZED_IDS else widened_type(hashed_type(type_))


def key_range_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of the bounds of a column. PyArrow has no `min_max` for durations."""
    type_ = normalized_type(type_)
    return pa.int64() if pt.is_duration(type_) else type_


def without_views(type_: pa.DataType) -> pa.DataType:
    """Return a type with large strings and large binary instead of views.

    PyArrow cannot gather views and has few kernels for them. A dictionary keeps its indices, and
    an extension type over views becomes its storage. List views keep their views, because PyArrow
    cannot cast them, and gathers them by their offsets. A type without views is returned itself,
    so that callers compare with ``is``.

    >>> without_views(pa.list_(pa.string_view()))
    ListType(list<item: large_string>)
    """

    def convert(leaf: pa.DataType) -> pa.DataType:
        if isinstance(leaf, pa.DictionaryType):
            values = leaf.value_type
            converted = without_views(values)
            dictionary = pa.dictionary(leaf.index_type, converted, leaf.ordered)
            return leaf if converted is values else dictionary
        if isinstance(leaf, pa.BaseExtensionType):
            storage = leaf.storage_type
            converted = without_views(storage)
            return leaf if converted is storage else converted
        return _LARGE_BY_VIEW.get(leaf.id, leaf)

    return convert_at_every_depth(type_, convert)


def with_32_bit_offsets(type_: pa.DataType) -> pa.DataType:
    """Return a type with strings, binary and lists instead of large ones.

    >>> with_32_bit_offsets(pa.large_list(pa.large_string()))
    ListType(list<item: string>)
    """

    def convert(leaf: pa.DataType) -> pa.DataType:
        if isinstance(leaf, pa.LargeListType):
            return pa.list_(leaf.value_field)
        return _SMALL_BY_LARGE.get(leaf.id, leaf)

    return convert_at_every_depth(type_, convert)


def with_64_bit_offsets(type_: pa.DataType) -> pa.DataType:
    """Return a type whose arrays may have more than 2 GiB, for strings and binary."""
    return _LARGE_BY_SMALL.get(type_.id, type_)


def innermost_types(type_: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the `hashed_type` of each value without parts: of the type itself, or nested in it."""
    type_ = hashed_type(type_)
    if not pt.is_nested(type_):
        yield type_
        return
    for number in range(type_.num_fields):
        yield from innermost_types(type_.field(number).type)


def has_python_extension(type_: pa.DataType) -> bool:
    """Return whether a type is, or contains, an extension type that is defined in Python."""
    if isinstance(type_, pa.ExtensionType):
        return True
    if isinstance(type_, pa.DictionaryType):
        return has_python_extension(type_.value_type)
    return any(has_python_extension(type_.field(number).type) for number in range(type_.num_fields))


def convert_at_every_depth(
    type_: pa.DataType, convert: Callable[[pa.DataType], pa.DataType]
) -> pa.DataType:
    """Convert the types nested in a type, and then the type. Return itself if none changes.

    The types inside dictionaries and list views are not converted.
    """
    if not type_.num_fields:
        # Most columns are not nested, and a lookup checks each of them for views.
        return convert(type_)
    fields = _nested_fields(type_)
    types = [field.type for field in fields]
    converted = [convert_at_every_depth(child, convert) for child in types]
    if not all(map(operator.is_, types, converted)):
        type_ = _with_fields(type_, list(map(pa.Field.with_type, fields, converted)))
    return convert(type_)


def _nested_fields(type_: pa.DataType) -> Sequence[pa.Field]:
    if isinstance(type_, pa.StructType):
        return list(type_)
    if isinstance(type_, pa.MapType):
        return [type_.key_field, type_.item_field]
    is_list = isinstance(type_, pa.ListType | pa.LargeListType | pa.FixedSizeListType)
    return [type_.value_field] if is_list else ()


def _with_fields(type_: pa.DataType, fields: Sequence[pa.Field]) -> pa.DataType:
    if isinstance(type_, pa.StructType):
        return pa.struct(fields)
    if isinstance(type_, pa.MapType):
        return pa.map_(*fields, type_.keys_sorted)
    if isinstance(type_, pa.LargeListType):
        return pa.large_list(*fields)
    return pa.list_(*fields, type_.list_size if isinstance(type_, pa.FixedSizeListType) else -1)
