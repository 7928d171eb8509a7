"""Read the forms of serialized expressions of Polars and PyArrow, also of other versions."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.seams import replace_function

import zonebloom as zb
from zonebloom.predicates import arrow_form as module
from zonebloom.predicates.polars_expression import unpack

C = pl.col
EXPRESSIONS = [
    C("d") == Decimal("-1.50"), C("f").eq(float("nan")), C("f") == float("inf"), C("f") == -0.5,
    C("b") == b"ab\xff", C("b") == b"0123456789abcdef", C("t") == dt.datetime(1920, 1, 1),
    C("t") == dt.timedelta(days=1), C("t") == dt.time(1), C("i") == 2**100, C("i") == -(2**63),
    C("i") == pl.lit(-(2**100), dtype=pl.Int128), C("i") == pl.lit(200, dtype=pl.UInt8),
    C("i") == pl.lit(-1000, dtype=pl.Int16), C("f") == pl.lit(2.5, dtype=pl.Float32),
    C("i").is_between(1, 2, closed="left"), C("s").struct.field("x") == 1, ~C("i").is_null(),
    C("s").is_in(["é" * 1000] * 50), C("s").is_in([None, "a"], nulls_equal=True),
    C("i").is_in(pl.Series(range(100_000)).implode()), C("s").str.contains("a" * 70_000),
    pl.any_horizontal([C("i") == number for number in range(70_000)]),
    C("x").cast(pl.Datetime("us", "UTC")) == dt.date(2020, 1, 1),
    pl.lit(True) | C("i").is_not_null(),
]  # fmt: skip


def as_json(value: Any) -> Any:
    """Return a value with lists of numbers in place of bytes."""
    if isinstance(value, bytes):
        return list(value)
    if isinstance(value, list):
        return [as_json(part) for part in value]
    if isinstance(value, dict):
        return {name: as_json(part) for name, part in value.items()}
    return value


@pytest.mark.slow
@pytest.mark.parametrize("expr", EXPRESSIONS, ids=range(len(EXPRESSIONS)))
def test_the_tree_of_messagepack_is_that_of_json(expr):
    tree = unpack(expr.meta.serialize(format="binary"))
    assert as_json(tree) == json.loads(expr.meta.serialize(format="json"))


@pytest.mark.parametrize(
    "data", [b"", b"\xa2a", b"\x92\x01", b"\xc6\x00", b"\xc1", b"\x01\x01", b"\xcb\x00"]
)
def test_bytes_that_are_not_one_value_are_refused(data):
    with pytest.raises(ValueError, match="byte"):
        unpack(data)


GOOD = [("call", "equal"), ("field_ref", "i64"), ("literal", "0"), ("end", "equal")]
MALFORMED = [
    [],
    GOOD[:3],
    GOOD + GOOD,
    [*GOOD[:3], ("end", "less")],
    [GOOD[0], ("novelty", "x"), *GOOD[1:]],
    [GOOD[0], GOOD[1], ("literal", "7"), GOOD[3]],
    [GOOD[0], ("nested_field_ref", "-1"), *GOOD[1:]],
    [GOOD[0], ("options", "0"), *GOOD[1:]],
    [("call", "cast"), GOOD[1], ("end", "cast")],
]


@pytest.mark.parametrize("entries", MALFORMED, ids=str)
def test_layout_of_another_pyarrow_version_is_unknown(monkeypatch, entries):
    replace_function(monkeypatch, module, "_schema_entries", lambda schema: list(entries))
    # Bypass the cache of parsed schema messages.
    replace_function(
        monkeypatch, module, "_parse_schema_message", module._parse_schema_message.__wrapped__
    )
    ds = zb.dataset(pa.table({"i64": [0, 5]}))
    ds.create_scalar_index("i64", number_of_items=1, spark=False)
    assert len(ds.search(pc.field("i64") == 5).at_most) == 2
    assert "cannot be parsed" in ds.scanner(filter=pc.field("i64") == 5).explain_plan()


def test_the_expression_layout_of_this_pyarrow_is_known():
    with pa.ipc.open_file((pc.field("i64") == 5).__reduce__()[1][0]) as reader:
        row = reader.get_batch(0)
    assert module._schema_entries(row.schema) == GOOD
    assert module.read_expression(pc.field("i64") == 5)[:2] == (GOOD, row)
