"""Test the division of rows into zones. Batch boundaries must not change a filter."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import PLAIN_TYPES, reference_filter, sample, train_zones
from support.seams import set_constant

from zonebloom.errors import InvalidArgument
from zonebloom.index.zone_bloom import train as zones_module
from zonebloom.index.zone_bloom.rows import ZoneParameters
from zonebloom.sbbf import hashing

SMALL = ZoneParameters(7, 0.05)


def encode(numbers):
    return [None if n is None else n.to_bytes(8, "little", signed=True) for n in numbers]


def listed(runs):
    """Return runs of zones as one list of (start, length, has_null, filter bytes)."""
    return [
        (start, length, null, filter.tobytes())
        for run in runs
        for start, length, null, filter in zip(
            run.starts.tolist(),
            run.lengths.tolist(),
            run.has_null.tolist(),
            run.filters,
            strict=True,
        )
    ]


def expected(encoded, parameters):
    """Return the zones of a fragment by the reference, which computes every row's zone number."""
    rows_by_zone = {}
    for row, data in enumerate(encoded):
        rows_by_zone.setdefault(row // parameters.number_of_items, []).append((row, data))
    num_blocks = parameters.filter_bytes // 32
    return [
        (
            rows[0][0],
            len(rows),
            None in [data for _, data in rows],
            reference_filter(num_blocks, [data for _, data in rows]),
        )
        for rows in rows_by_zone.values()
    ]


def pieces(array, cuts):
    bounds = [0, *sorted(cuts), len(array)]
    return [array.slice(a, b - a) for a, b in pairwise(bounds)]


rows = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=60)


@pytest.mark.parametrize("arrow_type", PLAIN_TYPES, ids=str)
def test_zones_of_every_type_equal_the_reference(arrow_type):
    array, encoded = sample(arrow_type)
    assert listed(train_zones([array], SMALL)) == expected(encoded, SMALL)


@given(rows, st.data(), st.integers(1, 9))
def test_any_batches_give_the_zones_of_the_reference(numbers, data, items):
    parameters = ZoneParameters(items, 0.05)
    cuts = data.draw(st.lists(st.integers(0, len(numbers)), max_size=6))
    batches = pieces(pa.array(numbers, pa.int64()), cuts)
    assert listed(train_zones(batches, parameters)) == expected(encode(numbers), parameters)


@given(rows, st.integers(1, 5), st.integers(1, 4))
def test_small_buffers_give_the_same_zones(numbers, items, capacity):
    # Small limits cut these few values into as many slices as a run of several gigabytes.
    parameters = ZoneParameters(items, 0.05)
    with pytest.MonkeyPatch.context() as patch:
        set_constant(patch, zones_module, "_BUFFER_BYTES", capacity * parameters.filter_bytes)
        set_constant(patch, hashing, "_HASH_ROWS", 3)
        runs = list(train_zones([pa.array(numbers, pa.int64())], parameters))
    assert all(len(run) <= capacity for run in runs)
    assert listed(runs) == expected(encode(numbers), parameters)


# Parameters


@pytest.mark.parametrize(
    "arguments",
    [
        {"number_of_items": 0},
        {"number_of_items": 1.5},
        {"number_of_items": True},
        {"number_of_items": 8192.0},
        {"number_of_items": "8192"},
        {"number_of_items": 2**32},
        {"number_of_items": 2**31, "probability": 0.001},
        {"probability": 0},
        {"probability": 1},
        {"probability": float("nan")},
        {"probability": "0.1"},
        {"fold": "best"},
    ],
    ids=str,
)
def test_impossible_parameters_raise_at_construction(arguments):
    # Sizes are cached by argument, where True == 1 and 8192.0 == 8192.
    ZoneParameters(1)
    ZoneParameters()
    with pytest.raises(InvalidArgument):
        ZoneParameters(**arguments)
