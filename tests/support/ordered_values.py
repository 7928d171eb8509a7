"""Values of each type that has an order, for tests of bounds."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid

import pyarrow as pa

DAY = datetime.date(2024, 1, 31)
MOMENT = datetime.datetime(2024, 1, 31, 12, 30)
# Values of each type, in ascending order.
VALUES = {
    pa.int8(): [-128, -3, 0, 5, 127],
    pa.uint64(): [0, 7, 2**63 - 1, 2**63, 2**64 - 1],
    pa.int64(): [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1],
    pa.float32(): [-math.inf, -1.5, -0.0, 0.0, 0.25, math.inf, math.nan],
    pa.float64(): [-math.inf, -1e300, -0.0, 0.0, 0.1, math.nan],
    pa.float16(): [-2.0, 0.0, 0.5, math.nan],
    pa.string(): ["", "a", "a" * 70, "a" * 70 + "b", "b", "é", "日本", "\U0010ffff" * 30],
    pa.large_string(): ["", "abc", "z" * 100],
    pa.string_view(): ["", "abc", "z" * 100],
    pa.binary(): [b"", b"\0", b"a", b"\xff" * 70, b"\xff" * 70 + b"\0"],
    pa.binary(2): [b"\0\0", b"ab", b"\xff\xff"],
    pa.decimal128(9, 2): [decimal.Decimal("-5.25"), decimal.Decimal(0), decimal.Decimal("99.99")],
    pa.decimal64(9, 2): [decimal.Decimal("-5.25"), decimal.Decimal("99.99")],
    pa.date32(): [datetime.date(1, 1, 1), DAY, datetime.date(9999, 12, 31)],
    pa.date64(): [DAY, datetime.date(2025, 1, 1)],
    pa.time64("us"): [datetime.time(0), datetime.time(23, 59, 59, 999999)],
    pa.timestamp("us"): [MOMENT, MOMENT + datetime.timedelta(microseconds=1)],
    pa.timestamp("ns", "UTC"): [MOMENT, MOMENT + datetime.timedelta(days=1)],
    pa.duration("s"): [datetime.timedelta(-1), datetime.timedelta(0), datetime.timedelta(9)],
    pa.bool_(): [False, True],
    pa.dictionary(pa.int8(), pa.string()): ["a", "b", "z"],
    pa.uuid(): [uuid.UUID(int=0).bytes, uuid.UUID(int=5).bytes, uuid.UUID(int=2**127).bytes],
}
TYPES = list(VALUES)


def column(kind: pa.DataType, values: list) -> pa.Array:
    if isinstance(kind, pa.UuidType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, pa.binary(16)))
    if isinstance(kind, pa.DictionaryType):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(values, kind)
