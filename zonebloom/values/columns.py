"""Find columns, and leaves of structs, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa


def matching_names(names: Iterable[str], name: str) -> list[str]:
    """Return the names that are equal to a name. If there are none, ignore the case.

    >>> matching_names(["id", "ID", "Day"], "id"), matching_names(["id", "ID", "Day"], "DAY")
    (['id'], ['Day'])
    """
    names = list(names)
    equal_names = [known_name for known_name in names if known_name == name]
    if equal_names:
        return equal_names
    lower_name = name.lower()
    return [known_name for known_name in names if known_name.lower() == lower_name]


def find_column(names: Iterable[str], name: str) -> str | None:
    """Return the one name that matches a name, or None if there are none or several."""
    matches = matching_names(names, name)
    return matches[0] if len(matches) == 1 else None


def find_leaf(schema: pa.Schema, names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the path of the one leaf that matches names, or None if there are none or several."""
    fields: pa.Schema | pa.StructType | None = schema
    path: list[str] = []
    for name in names:
        match = find_column(fields.names, name) if fields is not None else None
        if fields is None or match is None:
            return None
        path.append(match)
        field_type = fields.field(match).type
        fields = field_type if isinstance(field_type, pa.StructType) else None
    return tuple(path)


def column_path(schema: pa.Schema, text: str, ignore_case: bool = False) -> tuple[str, ...]:
    """Return the path for text with dots: a column with exactly that name, or else a leaf.

    >>> column_path(pa.schema({"a.b": pa.int8()}), "a.b"), column_path(pa.schema({}), "a.b")
    (('a.b',), ('a', 'b'))
    """
    if text in schema.names:
        return (text,)
    parts = tuple(text.split("."))
    if not ignore_case:
        return parts
    column = find_column(schema.names, text)
    return (column,) if column is not None else find_leaf(schema, parts) or parts


def leaf_names(schema: pa.Schema) -> list[str]:
    """Return the names of all columns. A struct is replaced by its leaves.

    >>> leaf_names(pa.schema({"id": pa.int8(), "s": pa.struct({"a": pa.int8()})}))
    ['id', 's.a']
    """

    def leaves_of(name: str, field_type: pa.DataType) -> Iterator[str]:
        if not isinstance(field_type, pa.StructType):
            yield name
            return
        for field in field_type:
            yield from leaves_of(f"{name}.{field.name}", field.type)

    return [leaf for field in schema for leaf in leaves_of(field.name, field.type)]


def find_leaf_type(schema: pa.Schema, path: Sequence[str]) -> pa.DataType | None:
    """Return the type at a path of names, or None if there are none or several."""
    try:
        return resolve_type(schema, path)
    except LookupError:
        return None


def resolve_type(schema: pa.Schema, path: Sequence[str]) -> pa.DataType:
    """Return the type at a path of names. Raise `LookupError` if there are none or several."""
    fields: pa.Schema | pa.StructType = schema
    field_type: pa.DataType | None = None
    for depth, name in enumerate(path):
        if field_type is not None:
            if not isinstance(field_type, pa.StructType):
                raise LookupError(f"{'.'.join(path[:depth])} is {field_type}, not a struct")
            fields = field_type
        indices = fields.get_all_field_indices(name)
        if len(indices) != 1:
            count = "no" if not indices else "more than one"
            raise LookupError(f"the schema has {count} column {'.'.join(path[: depth + 1])}")
        field_type = fields.field(indices[0]).type
    assert field_type is not None
    return field_type
