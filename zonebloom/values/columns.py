"""Columns, and leaves of structs, found by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa


def matching_names(names: Iterable[str], name: str, ignore_case: bool = True) -> list[str]:
    """Names that a name may mean: those equal to it, else those equal but for their case.

    >>> alike(["id", "ID", "Day"], "id"), alike(["id", "ID", "Day"], "DAY")
    (['id'], ['Day'])
    """
    names = list(names)
    same = [each for each in names if each == name]
    if same or not ignore_case:
        return same
    lowered = name.lower()
    return [each for each in names if each.lower() == lowered]


def find_column(names: Iterable[str], name: str, ignore_case: bool = True) -> str | None:
    """The one name that a name means, None where there is none or several."""
    meant = matching_names(names, name, ignore_case)
    return meant[0] if len(meant) == 1 else None


def find_leaf(
    schema: pa.Schema, names: Sequence[str], ignore_case: bool = True
) -> tuple[str, ...] | None:
    fields: pa.Schema | pa.StructType | None = schema
    path: list[str] = []
    for name in names:
        meant = find_column(fields.names, name, ignore_case) if fields is not None else None
        if fields is None or meant is None:
            return None
        path.append(meant)
        inner = fields.field(meant).type
        fields = inner if isinstance(inner, pa.StructType) else None
    return tuple(path)


def column_path(schema: pa.Schema, text: str, ignore_case: bool = False) -> tuple[str, ...]:
    """The path that text with dots names: a column of that whole name, or else a leaf.

    >>> column_path(pa.schema({"a.b": pa.int8()}), "a.b"), column_path(pa.schema({}), "a.b")
    (('a.b',), ('a', 'b'))
    """
    if text in schema.names:
        return (text,)
    parts = tuple(text.split("."))
    if not ignore_case:
        return parts
    whole = find_column(schema.names, text)
    return (whole,) if whole is not None else find_leaf(schema, parts) or parts


def leaf_names(schema: pa.Schema) -> list[str]:
    """Return the columns, with the leaves of structs in place of these.

    >>> leaf_names(pa.schema({"id": pa.int8(), "s": pa.struct({"a": pa.int8()})}))
    ['id', 's.a']
    """

    def below(name: str, kind: pa.DataType) -> Iterator[str]:
        if not isinstance(kind, pa.StructType):
            yield name
            return
        for field in kind:
            yield from below(f"{name}.{field.name}", field.type)

    return [leaf for field in schema for leaf in below(field.name, field.type)]


def find_leaf_type(schema: pa.Schema, path: Sequence[str]) -> pa.DataType | None:
    try:
        return resolve_type(schema, path)
    except LookupError:
        return None


def resolve_type(schema: pa.Schema, path: Sequence[str]) -> pa.DataType:
    """The type at a path of names, or LookupError when there is none, or more than one."""
    fields: pa.Schema | pa.StructType = schema
    kind: pa.DataType | None = None
    for depth, name in enumerate(path):
        if kind is not None:
            if not isinstance(kind, pa.StructType):
                raise LookupError(f"{'.'.join(path[:depth])} is {kind}, not a struct")
            fields = kind
        indices = fields.get_all_field_indices(name)
        if len(indices) != 1:
            count = "no" if not indices else "more than one"
            raise LookupError(f"the schema has {count} column {'.'.join(path[: depth + 1])}")
        kind = fields.field(indices[0]).type
    assert kind is not None
    return kind
