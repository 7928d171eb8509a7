"""Filter sizes: the specification's numbers, Lance's sizes, and what real filters do."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zonebloom import Sbbf
from zonebloom.errors import InvalidArgument
from zonebloom.sbbf import blocks, sizing
from zonebloom.sbbf.sizing import false_positive_probability, size_for

ndvs = st.integers(1, 1 << 20)
# Small enough for any of the sizes, large enough for Lance's smallest.
probabilities = st.floats(1e-6, 0.99)


@pytest.mark.parametrize(("ndv", "percent"), [(52_428, "18"), (26_214, "1.26"), (13_107, "0.04")])
def test_the_specifications_worked_example_of_1024_blocks(ndv, percent):
    decimals = len(percent.partition(".")[2])
    assert f"{false_positive_probability(ndv, 1024 * 32) * 100:.{decimals}f}" == percent


def by_definition(ndv, num_bytes):
    """Putze's equation 3 as written, summed from the low end with exact logarithms."""
    mean = ndv / (num_bytes / 32)
    terms = (
        math.exp(i * math.log(mean) - mean - math.lgamma(i + 1)) * (1 - (31 / 32) ** i) ** 8
        for i in range(1, 2000)
    )
    return math.fsum(terms)


@given(st.integers(1, 100_000), st.integers(1, 1 << 12))
def test_probability_equals_the_definition(ndv, num_blocks):
    probability = false_positive_probability(ndv, 32 * num_blocks)
    if ndv / (num_blocks * 256) > 2:
        assert probability == 1.0
    else:
        assert probability == pytest.approx(by_definition(ndv, 32 * num_blocks), rel=1e-9)


@given(ndvs, st.integers(1, 1 << 15), st.integers(0, 1000))
def test_probability_grows_with_values_and_falls_with_bytes(ndv, num_blocks, more):
    here = false_positive_probability(ndv, 32 * num_blocks)
    assert 0.0 < here <= 1.0
    assert false_positive_probability(ndv + more, 32 * num_blocks) >= here * (1 - 1e-12)
    assert false_positive_probability(ndv, 32 * (num_blocks + more)) <= here * (1 + 1e-12)


@given(ndvs, probabilities)
def test_sizes_are_the_least_that_reach_the_target(ndv, probability):
    log2, exact = size_for(ndv, probability), size_for(ndv, probability, "exact")
    assert log2.bit_count() == 1
    assert exact % 32 == 0
    assert exact <= log2 <= 1 << 27
    assert log2 < 2 * exact or log2 == 32
    for num_bytes, smaller in ((log2, log2 // 2), (exact, exact - 32)):
        assert false_positive_probability(ndv, num_bytes) <= probability
        if smaller >= 32:
            assert false_positive_probability(ndv, smaller) > probability


@pytest.mark.parametrize(
    ("num_blocks", "ndv"),
    [(1024, 52_428), (1024, 26_214), (1024, 13_107), (604, 8192), (336, 8192), (64, 2000)],
)
def test_measured_rate_is_within_sampling_error_of_the_estimate(num_blocks, ndv):
    # A rate strays by the values probed and by the filter drawn: the trials tell by how much.
    rng = np.random.default_rng(20_240_601)
    rates = []
    for _ in range(30):
        words = np.zeros(8 * num_blocks, dtype=np.uint32)
        blocks.insert(words, rng.integers(0, 2**64, ndv, dtype=np.uint64))
        out = np.zeros(30_000, dtype=bool)
        blocks.check(words, rng.integers(0, 2**64, out.size, dtype=np.uint64), out)
        rates.append(out.mean())
    standard_error = np.std(rates) / math.sqrt(len(rates))
    expected = false_positive_probability(ndv, 32 * num_blocks)
    assert standard_error < expected / 10
    assert abs(np.mean(rates) - expected) < 4 * standard_error


def test_filters_over_128_mib_are_refused_with_what_to_change():
    with pytest.raises(InvalidArgument, match=r"128 MiB; give fewer items .* larger probability"):
        size_for(10**9, 1e-6)
    with pytest.raises(InvalidArgument, match="128 MiB"):
        size_for(10**9, 1e-6, "exact")
    assert size_for(50_000_000, 0.00057) == 1 << 27


def test_docstring_examples():
    assert doctest.testmod(sizing).failed == 0
    assert doctest.testmod(sizing).attempted > 0


def folded_by_numpy(words, probability):
    """Fold a filter step by step, and estimate each step by `Sbbf.estimated_fpp`."""
    while words.size % 16 == 0:
        pairs = words.reshape(-1, 2, 8)
        half = (pairs[:, 0] | pairs[:, 1]).reshape(-1)
        if Sbbf.from_bytes(half).estimated_fpp > probability:
            break
        words = half
    return words


@given(
    st.lists(st.integers(0, 9000), min_size=1, max_size=4),
    st.sampled_from([1, 2, 6, 96, 604, 1024]),
    st.sampled_from([1e-9, 0.00057, 0.3, 1.0]),
)
@settings(deadline=None)
def test_filters_are_folded_as_far_as_their_estimates_allow(counts, num_blocks, probability):
    filters = np.zeros((len(counts), 8 * num_blocks), dtype=np.uint32)
    for words, count in zip(filters, counts, strict=True):
        hashes = np.random.default_rng(count).integers(0, 2**64, count, dtype=np.uint64)
        blocks.insert(words, hashes)
    folded, sizes = sizing.fold_filters(filters, probability)
    expected = [folded_by_numpy(words, probability) for words in filters]
    assert sizes.tolist() == [words.size for words in expected]
    assert folded.tobytes() == b"".join(words.tobytes() for words in expected)
