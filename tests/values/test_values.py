"""Literals are compared with columns exactly, or every zone may match.

A probe is right if it has the hash of every value that an engine may consider equal, or a reason
why every zone may match. The oracle is `hash_array` of the literal as an array of the column's
type, if PyArrow can make that array exactly.
"""

from __future__ import annotations

import math
import struct
from datetime import date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import (
    BINARY_TYPES,
    PLAIN_TYPES,
    STRING_TYPES,
    Label,
    sample,
)
from support.predicate_oracle import exact
from support.seams import set_constant

from zonebloom.sbbf.hashing import hash_array
from zonebloom.values import normal_types, types
from zonebloom.values import probe as probe_module
from zonebloom.values.probe import hash_bytes, hash_keys, probe, probe_many
from zonebloom.values.types import hash_domain

SIGNED = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
UNSIGNED = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
INTEGERS = SIGNED + UNSIGNED
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
FLOAT_CODES = {pa.float16(): "<e", pa.float32(): "<f", pa.float64(): "<d"}
DECIMALS = [pa.decimal32(7, 2), pa.decimal64(16, 4), pa.decimal128(38, 10), pa.decimal256(60, 0)]
# Random bytes are seldom decimals within their precision.
EXCEPT_DECIMALS = [t for t in PLAIN_TYPES if not pa.types.is_decimal(t)]
UNITS = ["s", "ms", "us", "ns"]
DAY = 86_400


def bounds(integer_type):
    bits = integer_type.bit_width
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if integer_type in SIGNED else (0, 2**bits - 1)


def raw(arrow_type, integer):
    """Return the scalar of a temporal type that is stored as this integer."""
    storage = pa.int32() if arrow_type.bit_width == 32 else pa.int64()
    return pa.array([integer], storage).view(arrow_type)[0]


def check_is(column, literal, *stored):
    """Check that a literal is looked up as exactly these values of the column's type."""
    literal = literal if isinstance(literal, pa.Scalar) else pa.scalar(literal)
    result = probe(column, literal)
    assert result.unusable_reason is None
    expected = hash_array(pa.array(list(stored), column)).values
    assert sorted(result.hashes.tolist()) == sorted(expected.tolist())


def check_no_row(column, literal):
    """Check that no row of the column can be equal to the literal."""
    result = probe(column, literal if isinstance(literal, pa.Scalar) else pa.scalar(literal))
    assert result.unusable_reason is None
    assert result.hashes.size == 0


def check_maybe(column, literal, why=""):
    """Check that every zone may match, for a reason."""
    result = probe(column, literal if isinstance(literal, pa.Scalar) else pa.scalar(literal))
    assert result.unusable_reason
    assert why in result.unusable_reason


# A literal of the column's own type


@pytest.mark.parametrize("arrow_type", EXCEPT_DECIMALS, ids=str)
def test_every_value_of_every_type_is_found_under_the_hash_it_was_inserted_with(arrow_type):
    array, encoded = sample(arrow_type)
    for scalar, data in zip(array, encoded, strict=True):
        if data is None or (arrow_type in FLOATS and math.isnan(scalar.as_py())):
            continue
        result = probe(arrow_type, scalar)
        assert result.unusable_reason is None
        assert hash_bytes(data) in result.hashes
        assert result.hashes.size == (2 if arrow_type in FLOATS and not scalar.as_py() else 1)


@pytest.mark.parametrize("column", DECIMALS, ids=str)
@given(data=st.data())
def test_every_decimal_is_found_under_the_hash_it_was_inserted_with(column, data):
    unscaled = data.draw(st.integers(1 - 10**column.precision, 10**column.precision - 1))
    value = Decimal(f"{unscaled}e{-column.scale}")
    check_is(column, pa.scalar(value, column), value)
    encoded = unscaled.to_bytes(column.byte_width, "little", signed=True)
    assert probe(column, pa.scalar(value, column)).hashes.tolist() == [hash_bytes(encoded)]


@given(st.text(max_size=40), st.sampled_from(STRING_TYPES), st.sampled_from(STRING_TYPES))
def test_strings_of_any_layout(text, column, literal_type):
    check_is(column, pa.scalar(text, literal_type), text)


@given(st.binary(max_size=40), st.sampled_from(BINARY_TYPES), st.sampled_from(BINARY_TYPES))
def test_binaries_of_any_layout(data, column, literal_type):
    check_is(column, pa.scalar(data, literal_type), data)


def test_dictionary_and_extension_columns_are_probed_as_what_they_hold():
    check_is(pa.dictionary(pa.int8(), pa.string()), "a", "a")
    encoded = pa.array(["x", "a"]).dictionary_encode()
    check_is(pa.large_string(), encoded[1], "a")
    key = bytes(range(16))
    stored = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([key], pa.binary(16)))
    for literal in (stored[0], pa.scalar(key), pa.scalar(key, pa.binary(16))):
        result = probe(pa.uuid(), literal)
        assert result.hashes.tolist() == hash_array(stored).values.tolist()


# Literals are converted to the column type only exactly: 5.0 is 5 in an int32 column


@pytest.mark.parametrize("column", INTEGERS, ids=str)
@pytest.mark.parametrize(
    "literal", [5.0, Decimal("5.00"), 5, pa.scalar(5, pa.uint8()), pa.scalar(5.0, pa.float16())]
)
def test_a_whole_number_of_any_kind_is_that_integer(column, literal):
    check_is(column, literal, 5)


# 5.5 matches no row


@pytest.mark.parametrize("column", INTEGERS, ids=str)
@pytest.mark.parametrize(
    "literal", [5.5, Decimal("5.5"), -0.5, Decimal("0.01"), 1e-300, math.inf, -math.inf]
)
def test_a_fraction_or_infinity_is_in_no_integer_column(column, literal):
    check_no_row(column, literal)


@pytest.mark.parametrize("column", INTEGERS, ids=str)
@pytest.mark.parametrize("literal_type", [*INTEGERS, pa.decimal128(38, 0)], ids=str)
def test_integers_at_the_bounds_of_the_column(column, literal_type):
    low, high = bounds(column)
    for number in (low - 1, low, low + 1, -1, 0, 1, high - 1, high, high + 1):
        least, most = bounds(literal_type) if literal_type in INTEGERS else (-(10**37), 10**37)
        if not least <= number <= most:
            continue
        literal = Decimal(number) if literal_type not in INTEGERS else number
        if low <= number <= high:
            check_is(column, pa.scalar(literal, literal_type), number)
        else:
            check_no_row(column, pa.scalar(literal, literal_type))


# Past 2**53 an engine that compares as floating point calls several integers equal


@given(st.floats(allow_nan=False), st.sampled_from(FLOATS), st.sampled_from(FLOATS))
def test_any_float_is_hashed_exactly_or_maybe(number, literal_type, column):
    with np.errstate(over="ignore"):
        literal = pa.scalar(literal_type.to_pandas_dtype()(number), literal_type)
        exact = literal.as_py()
        stored = column.to_pandas_dtype()(exact)
    if float(stored) != exact:
        check_maybe(column, literal)
    elif exact == 0:
        check_is(column, literal, column.to_pandas_dtype()(0.0), column.to_pandas_dtype()(-0.0))
    else:
        check_is(column, literal, stored)


# Filters hold raw bits, so a zero literal is looked up as +0.0 and as -0.0.


# For a NaN literal, every zone may match.


@pytest.mark.parametrize(
    "column", [*FLOATS, *INTEGERS, *DECIMALS, pa.string(), pa.date32()], ids=str
)
@pytest.mark.parametrize("literal_type", FLOATS, ids=str)
def test_nan_is_maybe(column, literal_type):
    check_maybe(column, pa.scalar(np.float16("nan"), pa.float16()).cast(literal_type))


# Timestamps, dates, times, durations


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("literal_unit", UNITS)
@pytest.mark.parametrize("make", [pa.timestamp, pa.duration])
def test_units_convert_exactly_or_match_nothing(unit, literal_unit, make):
    column, factor = (
        make(unit),
        {unit: 10**9 // ticks for unit, ticks in types.TICKS_PER_SECOND.items()},
    )
    for count in (0, 1, -1, 1000, -1000, 10**9, 1_700_000_000, -(10**9) - 1):
        nanoseconds = count * factor[literal_unit]
        literal = raw(make(literal_unit), count)
        whole, rest = divmod(nanoseconds, factor[unit])
        if rest or not -(2**63) <= whole < 2**63:
            check_no_row(column, literal)
        else:
            check_is(column, literal, raw(column, whole))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris", "+05:30"])
def test_an_instant_is_the_same_in_any_zone(zone):
    literal = raw(pa.timestamp("ms", "America/New_York"), 1_700_000_000_000)
    result = probe(pa.timestamp("us", zone), literal)
    assert result.unusable_reason is None
    assert result.hashes.tolist() == [hash_bytes((1_700_000_000_000_000).to_bytes(8, "little"))]


DAY_OF_LEAP, MIDNIGHT = date(2024, 2, 29), datetime(2024, 2, 29)
NOON = time(12, 0, 1)
MOMENT = pd.Timestamp("2024-02-29 12:00:00.123456789")
TIMES = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
DECIMAL = pa.decimal128(9, 4)

# A column, a literal, and the stored values that it equals, or the reason why any row may match.
CASES = [
    # Integers outside of the column's range, and floats up to the last that are exact.
    (pa.uint8(), 300, []),
    (pa.int32(), 99_999_999_999, []),
    (pa.int64(), Decimal(2**64), []),
    (pa.int8(), 1e10, []),
    (pa.int64(), 2.0**53 - 1, [2**53 - 1]),
    (pa.int64(), -(2.0**53) + 1, [-(2**53) + 1]),
    (pa.int64(), -(2.0**53), ""),
    (pa.int64(), pa.scalar(2.0**24 - 1, pa.float32()), [2**24 - 1]),
    (pa.int64(), pa.scalar(2.0**24, pa.float32()), ""),
    (pa.int64(), pa.scalar(2047.0, pa.float16()), [2047]),
    (pa.int64(), pa.scalar(2048.0, pa.float16()), ""),
    # Literals that a float column would round, and that it holds.
    (pa.float64(), Decimal("0.1"), "round"),
    (pa.float64(), 2**53 + 1, "round"),
    (pa.float32(), 2**24 + 1, "round"),
    (pa.float16(), 65_520, "round"),
    (pa.float64(), pa.scalar(Decimal(10) ** 75 + 1, pa.decimal256(76, 0)), "round"),
    (pa.float64(), 2**53, [2.0**53]),
    (pa.float64(), Decimal("0.25"), [0.25]),
    (pa.float16(), 3, [np.float16(3)]),
    # A zero has one form in columns that are not of floats.
    *((column, zero, [0]) for column in (pa.int32(), DECIMAL) for zero in (0, Decimal("-0.00"))),
    (pa.int32(), -0.0, [0]),
    # Decimals of another scale, precision or width.
    (DECIMAL, Decimal("-1.500000000"), [Decimal("-1.5")]),
    (DECIMAL, 7, [Decimal(7)]),
    (DECIMAL, pa.scalar(Decimal("1.50"), pa.decimal256(70, 2)), [Decimal("1.5")]),
    (pa.decimal256(70, 2), pa.scalar(Decimal("1.5000"), DECIMAL), [Decimal("1.5")]),
    (pa.decimal128(5, -2), 1200, [Decimal(1200)]),
    (pa.decimal128(5, -2), 1250, []),
    (DECIMAL, Decimal("1.00001"), []),
    (pa.decimal128(5, 2), Decimal("999.99"), [Decimal("999.99")]),
    (pa.decimal128(5, 2), 1000, []),
    (pa.decimal32(7, 2), Decimal(10) ** 30, []),
    (pa.decimal128(38, 0), pa.scalar(Decimal(10) ** 70, pa.decimal256(76, 0)), []),
    *((DECIMAL, literal, "not compared exactly") for literal in (1.5, 1.0, 0.1, math.inf)),
    # Timestamps, dates and times.
    (pa.timestamp("ns"), raw(pa.timestamp("s"), 10**12), []),
    (pa.timestamp("s"), raw(pa.timestamp("s"), 2**63 - 1), [2**63 - 1]),
    (pa.timestamp("us"), raw(pa.timestamp("us", "UTC"), 0), ""),
    (pa.timestamp("us", "UTC"), raw(pa.timestamp("us"), 0), ""),
    (pa.timestamp("us", "UTC"), DAY_OF_LEAP, ""),
    (pa.date32(), raw(pa.timestamp("s", "UTC"), 0), ""),
    (pa.date64(), raw(pa.timestamp("s", "UTC"), 0), ""),
    (pa.timestamp("ns"), pa.scalar(MOMENT, pa.timestamp("ns")), [MOMENT.value]),
    (pa.timestamp("us"), pa.scalar(MOMENT, pa.timestamp("ns")), []),
    *(
        (column, literal, [DAY_OF_LEAP])
        for column in (pa.date32(), pa.date64())
        for literal in (
            *(DAY_OF_LEAP, MIDNIGHT, pa.scalar(DAY_OF_LEAP, pa.date64())),
            pa.scalar(MIDNIGHT, pa.timestamp("ns")),
        )
    ),
    *(
        (pa.timestamp(unit), literal, [MIDNIGHT])
        for unit in UNITS
        for literal in (DAY_OF_LEAP, pa.scalar(DAY_OF_LEAP, pa.date64()))
    ),
    (pa.date32(), datetime(2024, 2, 29, 12), []),
    (pa.date32(), raw(pa.timestamp("ns"), 1), []),
    (pa.date64(), raw(pa.timestamp("us"), 1), []),
    (pa.date32(), date(1, 1, 1), [date(1, 1, 1)]),
    (pa.date64(), date(1969, 12, 31), [date(1969, 12, 31)]),
    (pa.date32(), raw(pa.timestamp("s"), 2**31 * DAY), []),
    (pa.date32(), raw(pa.timestamp("s"), -(2**31) * DAY), [raw(pa.date32(), -(2**31))]),
    *((column, pa.scalar(NOON, kind), [NOON]) for column in TIMES for kind in TIMES),
    (pa.time32("s"), time(12, 0, 1, 1000), []),
    (pa.time32("ms"), time(12, 0, 1, 1), []),
    (pa.time64("us"), raw(pa.time64("ns"), 1), []),
    # Types that cannot be compared.
    (pa.time32("s"), timedelta(seconds=1), ""),
    (pa.duration("s"), NOON, ""),
    (pa.timestamp("s"), NOON, ""),
    (pa.date32(), 5, ""),
    (pa.timestamp("us"), 5, ""),
    (pa.int64(), MIDNIGHT, ""),
    *((column, "5", "") for column in (pa.int32(), pa.float64(), DECIMAL, pa.timestamp("us"))),
    *((pa.string(), literal, "") for literal in (5, b"x", True, [1])),
    (pa.binary(), "x", ""),
    (pa.binary(4), "abcd", ""),
    (pa.int32(), True, ""),
    (pa.int32(), pa.scalar((1, 2, 3), pa.month_day_nano_interval()), ""),
    # Bytes of the length of the column are found, and others match nothing.
    *(
        (pa.binary(4), pa.scalar(b"abcd", kind), [b"abcd"])
        for kind in (*BINARY_TYPES, pa.binary(4))
    ),
    *((pa.binary(4), literal, []) for literal in (b"abc", pa.scalar(b"abcde", pa.binary(5)))),
    (pa.binary(), pa.scalar(b"abcde", pa.binary(5)), [b"abcde"]),
]


@pytest.mark.parametrize(
    ("column", "literal", "expected"),
    CASES,
    ids=lambda value: str(value if isinstance(value, pa.DataType) else type(value).__name__),
)
def test_a_literal_is_looked_up_exactly_or_may_be_anywhere(column, literal, expected):
    if isinstance(expected, str):
        check_maybe(column, literal, expected)
    elif expected:
        check_is(column, literal, *expected)
    else:
        check_no_row(column, literal)


# Several literals at once


def check_many_is_the_union(column, literals):
    array = literals if isinstance(literals, pa.Array) else pa.array(literals)
    result = probe_many(column, array)
    single_results = [probe(column, literal) for literal in array]
    if any(single.unusable_reason for single in single_results):
        assert result.unusable_reason
        return
    assert result.unusable_reason is None
    expected = {hashed for single in single_results for hashed in single.hashes.tolist()}
    assert sorted(result.hashes.tolist()) == sorted(expected)


@pytest.mark.parametrize("arrow_type", EXCEPT_DECIMALS, ids=str)
@pytest.mark.parametrize("rows", [1, 40, 300])
def test_many_values_of_every_type_are_the_union_of_their_probes(arrow_type, rows):
    array, _ = sample(arrow_type, rows, nulls=0)
    if arrow_type in FLOATS:
        array = array.filter(pc.invert(pc.is_nan(array.cast(pa.float64()))))
    check_many_is_the_union(arrow_type, array)


@pytest.mark.parametrize("count", [3, 64, 65, 200])
@pytest.mark.parametrize("column", [*INTEGERS, pa.float64(), pa.decimal128(20, 2)], ids=str)
@pytest.mark.parametrize("literal_type", [pa.int64(), pa.uint64(), pa.int16()], ids=str)
def test_many_integers_of_another_width(column, literal_type, count):
    low, high = bounds(literal_type)
    ends = [low, low + 1, high - 1, high, 0, 127, 128, 255]
    spread = [n * 97 - (count * 40 if low else 0) for n in range(count)]
    check_many_is_the_union(column, pa.array((ends + spread)[:count], literal_type))


@pytest.mark.parametrize("count", [10, 100])
def test_many_literals_of_which_only_some_can_match(count):
    check_many_is_the_union(pa.int32(), [1.0, 2.5, 1e10, math.inf] * count)
    check_many_is_the_union(pa.int32(), [1.0, math.nan] * count)
    check_many_is_the_union(pa.float64(), [0.0, -0.0, 1.5] * count)
    check_many_is_the_union(pa.float64(), [math.nan] * count)
    check_many_is_the_union(pa.float32(), pa.array([0.5, 0.0] * count, pa.float32()))
    check_many_is_the_union(pa.string(), list(range(count)))
    check_many_is_the_union(pa.binary(3), [b"abc", b"abcd"] * count)
    check_many_is_the_union(pa.decimal128(9, 1), [Decimal("1.5"), Decimal("1.55")] * count)
    check_many_is_the_union(
        pa.decimal128(9, 2), pa.array([Decimal("1.5")] * count, pa.decimal128(9, 2))
    )
    check_many_is_the_union(pa.date32(), [datetime(2024, 1, 1), datetime(2024, 1, 1, 1)] * count)
    check_many_is_the_union(
        pa.timestamp("us", "UTC"),
        pa.array([datetime(2024, 1, 1)] * count, pa.timestamp("us", "Europe/Paris")),
    )


@pytest.mark.parametrize("count", [5, 500])
def test_many_in_other_layouts(count):
    texts = [f"N{i % 50}" for i in range(count)]
    for column in (*STRING_TYPES, pa.dictionary(pa.int8(), pa.string())):
        for literals in (
            pa.array(texts),
            pa.array(texts, pa.large_string()),
            pa.array(texts, pa.string_view()),
            pa.array(texts).dictionary_encode(),
            pa.array(["x", *texts]).slice(1),
        ):
            check_many_is_the_union(column, literals)
            assert probe_many(column, literals).hashes.size == min(count, 50)


def test_no_literal_is_lost_if_there_are_very_many(monkeypatch):
    set_constant(monkeypatch, probe_module, "_MAX_SORTED_HASHES", 100)
    numbers = pa.array(np.random.default_rng(0).permutation(500))
    hashes = probe_many(pa.int32(), numbers).hashes
    assert set(hashes.tolist()) == set(hash_array(numbers.cast(pa.int32())).values.tolist())
    assert (np.diff(hashes[:100].astype(object)) > 0).all()


# `is_lossless_cast` compared with the casts of PyArrow


@pytest.mark.parametrize("source", PLAIN_TYPES, ids=str)
def test_a_wider_type_holds_every_value_as_it_is(source):
    values = sample(source, 100, nulls=0)[0]
    if source in FLOATS:
        values = values.filter(pc.invert(pc.is_nan(values.cast(pa.float64()))))
    if source in INTEGERS:
        values = pa.concat_arrays([values, pa.array(bounds(source), source)])
    for target in PLAIN_TYPES:
        if not types.is_lossless_cast(source, target, checked=True):
            continue
        try:
            cast = values.cast(target)
        except pa.ArrowNotImplementedError:
            continue
        except pa.ArrowInvalid:
            assert not types.is_lossless_cast(source, target)
            continue
        assert [exact(value) for value in cast] == [exact(value) for value in values]
    assert types.is_lossless_cast(source, source)


def test_narrower_types_do_not_widen():
    for source, target in [
        (pa.int64(), pa.float64()), (pa.int32(), pa.float32()), (pa.int16(), pa.float16()),
        (pa.uint32(), pa.int32()), (pa.int8(), pa.uint64()), (pa.float64(), pa.float32()),
        (pa.int64(), pa.decimal128(18, 0)), (pa.decimal128(9, 2), pa.decimal128(9, 3)),
        (pa.decimal128(9, 2), pa.int64()), (pa.binary(), pa.binary(4)), (pa.string(), pa.binary()),
        (pa.timestamp("ms"), pa.timestamp("s")), (pa.timestamp("s"), pa.timestamp("s", "UTC")),
        (pa.date64(), pa.date32()), (pa.date32(), pa.timestamp("s")), (pa.int32(), pa.date32()),
    ]:  # fmt: skip
        assert not types.is_lossless_cast(source, target, checked=True)
    assert not types.is_lossless_cast(pa.timestamp("s"), pa.timestamp("ns"))


# Hash domains: filters of one type answer for all types of its domain


def test_layouts_of_one_kind_share_a_domain():
    for arrow_type in (*STRING_TYPES, pa.dictionary(pa.int8(), pa.large_string())):
        assert hash_domain(arrow_type) == "string"
    for arrow_type in (*BINARY_TYPES, pa.dictionary(pa.int8(), pa.binary_view())):
        assert hash_domain(arrow_type) == "binary"
    assert hash_domain(pa.uuid()) == hash_domain(pa.binary(16))
    zones = {hash_domain(pa.timestamp("us", zone)) for zone in ("UTC", "Europe/Paris", "+01:00")}
    assert len(zones) == 1


def test_types_hashed_as_other_bytes_have_domains_of_their_own():
    apart = [
        *INTEGERS,
        *FLOATS,
        *DECIMALS,
        pa.decimal128(9, 2),
        pa.decimal128(9, 3),
        *(make(unit) for make in (pa.timestamp, pa.duration) for unit in UNITS),
        *(pa.timestamp(unit, "UTC") for unit in UNITS),
        pa.time32("s"),
        pa.time32("ms"),
        pa.time64("us"),
        pa.time64("ns"),
        pa.date32(),
        pa.date64(),
        pa.string(),
        pa.binary(),
        pa.binary(4),
        pa.binary(5),
    ]
    assert len({hash_domain(arrow_type) for arrow_type in apart}) == len(apart)


# Types that values are converted to


def with_label(storage):
    return pa.ExtensionArray.from_storage(Label(storage.type), storage)


VIEWS = pa.array(["a", "bc"], pa.string_view())
OFFSETS = pa.array([0, 1, 2], pa.int32())


@pytest.mark.parametrize(
    "values",
    [
        VIEWS,
        VIEWS.cast(pa.binary_view()),
        pa.DictionaryArray.from_arrays(OFFSETS[:2], VIEWS),
        with_label(VIEWS),
        pa.DictionaryArray.from_arrays(OFFSETS[:2], with_label(VIEWS)),
    ],
    ids=lambda values: str(values.type),
)
@pytest.mark.parametrize(
    "nest",
    [
        lambda values: values,
        lambda values: pa.ListArray.from_arrays(OFFSETS, values),
        lambda values: pa.LargeListArray.from_arrays(OFFSETS.cast(pa.int64()), values),
        lambda values: pa.FixedSizeListArray.from_arrays(values, 1),
        lambda values: pa.StructArray.from_arrays([values], ["a"]),
        lambda values: pa.MapArray.from_arrays(OFFSETS, pa.array(["x", "y"]), values),
    ],
    ids=["flat", "list", "large_list", "pair", "struct", "map"],
)
def test_pyarrow_casts_a_column_to_its_type_without_views_and_back(values, nest):
    column = nest(values)
    converted = column.cast(normal_types.without_views(column.type))
    assert converted.take(pa.array([1])).to_pylist() == column.to_pylist()[1:]
    assert converted.cast(column.type).equals(column)
    assert "view" not in str(converted.type)


@pytest.mark.parametrize(
    "values",
    [
        VIEWS,
        with_label(VIEWS),
        with_label(with_label(VIEWS)),
        pa.DictionaryArray.from_arrays(OFFSETS[:2], with_label(VIEWS)),
        with_label(pa.DictionaryArray.from_arrays(OFFSETS[:2], VIEWS)),
        pa.DictionaryArray.from_arrays(
            OFFSETS[:2], pa.DictionaryArray.from_arrays(OFFSETS[:2], VIEWS)
        ),
    ],
    ids=lambda values: str(values.type),
)
def test_hashed_values_have_no_dictionaries_or_extensions_and_the_same_hashes(values):
    converted = normal_types.hashed_values(values)
    assert converted.to_pylist() == ["a", "bc"]
    assert converted.type in (pa.string_view(), pa.large_string())
    assert hash_array(converted).values.tolist() == hash_array(values).values.tolist()


# Many keys at once

INTEGER_CODES = {pa.int8(): "<b", pa.uint16(): "<H", pa.int64(): "<q", pa.uint64(): "<Q"}
SPECIAL_FLOATS = [0.0, -0.0, math.nan, math.inf, -math.inf, 0.1, 65504.0, 70000.0, 1e300, 5e-324]


def stored_form(code, value):
    """Return the bytes of a number in a column, or None if the column cannot hold it."""
    try:
        form = struct.pack(code, value)
    except (struct.error, OverflowError):
        return None
    return form if struct.unpack(code, form)[0] == value else None


def hashes_by_position(bulk):
    hashes = {int(position): set() for position in (*bulk.positions, *bulk.zeros)}
    for position, hashed in zip(bulk.positions.tolist(), bulk.hashes.tolist(), strict=True):
        hashes[position].add(hashed)
    for position in bulk.zeros.tolist():
        hashes[position].update(bulk.zero_hashes.tolist())
    return hashes


@pytest.mark.parametrize("column", FLOAT_CODES, ids=str)
@pytest.mark.parametrize("key_type", FLOAT_CODES, ids=str)
@given(data=st.data())
def test_many_floats_are_hashed_as_the_column_stores_them(column, key_type, data):
    floats = st.one_of(st.none(), st.sampled_from(SPECIAL_FLOATS), st.floats())
    dtype = key_type.to_pandas_dtype()
    with np.errstate(over="ignore"):
        values = [None if item is None else dtype(item) for item in data.draw(st.lists(floats))]
    keys = pa.array(values, key_type).slice(data.draw(st.integers(0, 2)))
    bulk = hash_keys(column, keys)
    expected, anywhere = {}, []
    for position, key in enumerate(keys.to_pylist()):
        form = None if key is None else stored_form(FLOAT_CODES[column], key)
        if form is not None:
            forms = [form] if key else [struct.pack(FLOAT_CODES[column], z) for z in (0.0, -0.0)]
            expected[position] = {hash_bytes(zero_or_form) for zero_or_form in forms}
        elif key is not None:
            anywhere.append(position)
    assert hashes_by_position(bulk) == expected
    assert bulk.anywhere.tolist() == anywhere


@pytest.mark.parametrize("column", INTEGER_CODES, ids=str)
@pytest.mark.parametrize("key_type", INTEGER_CODES, ids=str)
@given(data=st.data())
def test_many_integers_are_hashed_as_the_column_stores_them(column, key_type, data):
    low, high = types.integer_bounds(key_type)
    integers = st.one_of(st.none(), st.integers(low, high), st.sampled_from([0, low, high]))
    keys = pa.array(data.draw(st.lists(integers)), key_type).slice(data.draw(st.integers(0, 2)))
    bulk = hash_keys(column, keys)
    forms = [
        None if key is None else stored_form(INTEGER_CODES[column], key) for key in keys.to_pylist()
    ]
    assert hashes_by_position(bulk) == {
        position: {hash_bytes(form)} for position, form in enumerate(forms) if form is not None
    }
    assert not bulk.anywhere.size


def test_many_keys_of_other_types_have_the_hashes_of_single_keys():
    seconds = pa.array([1, 2], pa.timestamp("s"))
    for column, keys in (
        (pa.decimal128(9, 2), pa.array([1, None, 2])),
        (pa.timestamp("us"), seconds),
        (pa.float64(), pa.array([0, 3])),
    ):
        assert hashes_by_position(hash_keys(column, keys)) == {
            position: set(probe(column, key).hashes.tolist())
            for position, key in enumerate(keys)
            if key.is_valid
        }
    texts = hash_keys(pa.string_view(), pa.array(["a", None, "b"]).dictionary_encode())
    assert hashes_by_position(texts) == {0: {hash_bytes(b"a")}, 2: {hash_bytes(b"b")}}
