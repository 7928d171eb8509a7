"""Test which values equal a key of any type, and which types hold the values of others."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.helpers import (
    BINARY_TYPES,
    PLAIN_TYPES,
    STRING_TYPES,
    Label,
    sample,
)
from support.predicate_oracle import exact

from zonebloom.sbbf.hashing import hash_array
from zonebloom.values import normal_types, types
from zonebloom.values.literal import hash_keys, probe, probe_many
from zonebloom.values.types import hash_domain

SIGNED = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
UNSIGNED = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
INTEGERS = SIGNED + UNSIGNED
FLOATS = [pa.float16(), pa.float32(), pa.float64()]


DECIMALS = [pa.decimal32(7, 2), pa.decimal64(16, 4), pa.decimal128(38, 10), pa.decimal256(60, 0)]


UNITS = ["s", "ms", "us", "ns"]


def bounds(integer_type):
    bits = integer_type.bit_width
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if integer_type in SIGNED else (0, 2**bits - 1)


# Every type with every other. A column has those of these values that its type holds exactly.

NUMBERS = [
    *(0, 1, 5, -1, -5, 127, 128, -128, -129, 255, 256, 300, 1200, 32_767, 65_535, 65_536),
    *(2**24 - 1, 2**24, 2**24 + 1, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**53 - 1, 2**53),
    *(2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 10**30),
    *(Fraction("5.5"), Fraction("-0.5"), Fraction("0.25"), Fraction("0.1"), Fraction("999.99")),
]
SPECIAL_FLOATS = [-0.0, 0.1, math.nan, math.inf, -math.inf, 1e-7, 65_504.0]
NANOSECONDS = [
    *(0, 1, -1, 1000, -1000, 10**6, 10**9, -(10**9), 10**9 + 1, 43_201 * 10**9, 86_399 * 10**9),
    *(day * 86_400 * 10**9 for day in (1, -1, 77, 19_782, 2**31 - 1, -(2**31))),
    *(1_700_000_000 * 10**9, 1_700_000_000_123_456_789, 2**62, 10**12 * 10**9),
]
TEXTS = ["", "a", "5", "\u00e9", "a text that is too long for a view", "ab\0"]
NANOSECONDS_OF = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
KINDS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal32(7, 2), pa.decimal64(16, 4), pa.decimal128(38, 10), pa.decimal256(60, 0)),
    *(pa.decimal128(5, 2), pa.decimal128(5, -2)),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())),
    *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(4), pa.binary(5)),
    *(pa.date32(), pa.date64()),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(make(unit) for make in (pa.timestamp, pa.duration) for unit in NANOSECONDS_OF),
    *(pa.timestamp(unit, zone) for unit in NANOSECONDS_OF for zone in ("UTC", "Europe/Paris")),
]


def values_of(kind: pa.DataType) -> pa.Array:
    """Return the values above that a type holds."""
    is_type = pa.types
    if is_type.is_dictionary(kind):
        return pa.array(TEXTS).dictionary_encode().cast(kind)
    if "string" in str(kind):
        return pa.array(TEXTS, kind)
    if "binary" in str(kind):
        stored = [b"abcd", b"\0\0\0\0", b"abcde", b"\xff\xff\xff\xff"]
        is_fixed = is_type.is_fixed_size_binary(kind)
        return pa.array([v for v in stored if not is_fixed or len(v) == kind.byte_width], kind)
    if is_type.is_floating(kind):
        make = kind.to_pandas_dtype()
        with np.errstate(over="ignore"):
            floats = [make(float(number)) for number in NUMBERS if float(number) == number]
            floats = [x for x in floats if np.isfinite(x) and float(x) in NUMBERS]
            return pa.array([*floats, *map(make, SPECIAL_FLOATS)], kind)
    if is_type.is_decimal(kind):
        scaled = [number * Fraction(10) ** kind.scale for number in NUMBERS]
        whole = [int(s) for s in scaled if s == int(s) and abs(s) < 10**kind.precision]
        return pa.array([Decimal(number).scaleb(-kind.scale) for number in whole], kind)
    low, high = types.integer_bounds(kind)
    if is_type.is_integer(kind):
        return pa.array([n for n in NUMBERS if n == int(n) and low <= n <= high], kind)
    step = NANOSECONDS_OF[kind.unit] if hasattr(kind, "unit") else 10**6
    step = 86_400 * 10**9 if is_type.is_date32(kind) else step
    if is_type.is_time(kind):
        low, high = 0, 86_400 * 10**9 // step - 1
    ticks = [n // step for n in NANOSECONDS if n % step == 0 and low <= n // step <= high]
    return pa.array(ticks, f"int{kind.bit_width}").view(kind)


VALUES = {kind: values_of(kind) for kind in KINDS}
KEYS = {**VALUES, pa.bool_(): pa.array([True, False])}
# The least float that may stand for several integers, by the width of the float.
EXACT_LIMITS = {16: 2**11, 32: 2**24, 64: 2**53}


def may_be_anywhere(column: pa.DataType, key: pa.Scalar) -> bool | None:
    """Return whether engines may round a key before they compare it, or None if either is right."""
    (kind, value), stored = exact(key), exact(VALUES[column][0])[0]
    if kind != stored:
        return None
    if not pa.types.is_floating(key.type):
        return pa.types.is_floating(column) and value not in map(exact_value, VALUES[column])
    if math.isnan(value) or pa.types.is_decimal(column):
        return True
    if pa.types.is_integer(column):
        return EXACT_LIMITS[key.type.bit_width] <= abs(value) < math.inf
    with np.errstate(over="ignore"):
        return float(column.to_pandas_dtype()(float(value))) != value


def exact_value(scalar: pa.Scalar) -> object:
    return exact(scalar)[1]


@pytest.mark.many
@pytest.mark.parametrize("column", VALUES, ids=str)
def test_a_key_has_the_hashes_of_the_rows_that_equal_it_or_may_be_anywhere(column):
    """The oracle compares exact numbers, moments, texts and bytes."""
    stored = list(map(exact, VALUES[column]))
    row_hashes = hash_array(VALUES[column]).values.tolist()
    for values in KEYS.values():
        rows, reasons = [], []
        for key in values:
            result = probe(column, key)
            reasons.append(result.unusable_reason)
            anywhere = may_be_anywhere(column, key)
            assert anywhere is None or anywhere == bool(result.unusable_reason), (column, key)
            rows.append({row for row, hashed in enumerate(row_hashes) if hashed in result.hashes})
            if not result.unusable_reason:
                wanted = {row for row, value in enumerate(stored) if value == exact(key)}
                assert rows[-1] == wanted, (column, key)
        # Many keys are hashed at once. A null equals no row.
        keys = pa.concat_arrays([pa.nulls(1, values.type), *[values] * (1 + 65 // len(values))])
        bulk = hash_keys(column, keys)
        found = {int(position): set() for position in (*bulk.positions, *bulk.zeros)}
        for position, hashed in zip(bulk.positions.tolist(), bulk.hashes.tolist(), strict=True):
            found[position].add(hashed)
        for position in bulk.zeros.tolist():
            found[position].update(bulk.zero_hashes.tolist())
        for position in range(1, len(keys)):
            number = (position - 1) % len(values)
            assert (position in bulk.anywhere) == bool(reasons[number])
            hashes = found.get(position, ())
            assert {row for row, hashed in enumerate(row_hashes) if hashed in hashes} == rows[
                number
            ]
        assert 0 not in found and 0 not in bulk.anywhere
        for array in (values, keys.slice(1)):
            together = probe_many(column, array)
            assert bool(together.unusable_reason) == any(map(bool, reasons))
            if not together.unusable_reason:
                held = {row for row, hashed in enumerate(row_hashes) if hashed in together.hashes}
                assert held == set().union(*rows)


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
