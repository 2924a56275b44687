"""The paper's construction: right where the paper could see it, and noise where the eigenvalues are tiny.

The noise is tested on purpose. What the high channels cost a model can be asked only while they really are
wrong here and right in the exact bank.
"""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_ssm.filters import Filters, hankel_filters
from es_ssm.subspace import subspace_filters

LENGTH, COUNT = 2048, 32


@cache
def bank(method: str) -> Filters:
    return hankel_filters(LENGTH, COUNT, method)


def misses(method: str) -> np.ndarray:
    """The distance of each channel from the exact one; two unit vectors at random are about 1.4 apart."""
    return np.linalg.norm(bank(method).filters - bank("exact").filters, axis=1)


def test_float64_gives_the_first_sixteen_channels():
    assert misses("subspace-float64")[:16].max() < 1e-6  # measured: 2e-7


def test_float64_gives_noise_for_the_last_channels():
    assert misses("subspace-float64")[28:].min() > 0.5


def test_float32_gives_the_first_seven_channels():
    assert misses("subspace-float32")[:7].max() < 2e-2  # measured: 7e-3


def test_float32_gives_noise_from_the_twelfth_channel_on():
    assert misses("subspace-float32")[11:].min() > 0.5


def test_float32_is_worse_than_float64_until_both_are_noise():
    assert np.all(misses("subspace-float32")[:24] > 3 * misses("subspace-float64")[:24])


def test_eigenvalues_are_as_good_as_the_precision_relative_to_the_largest():
    true = bank("exact").eigenvalues
    for method, precision in (("subspace-float64", 2.3e-16), ("subspace-float32", 1.2e-7)):
        assert np.abs(bank(method).eigenvalues - true).max() < 8 * precision * true[0]
        assert np.abs(bank(method).eigenvalues / true - 1)[-1] > 10  # and the last one is a fiction


@settings(max_examples=40, deadline=None)
@given(length=st.integers(1, 600), dtype=st.sampled_from(["float64", "float32"]), data=st.data())
def test_shapes_types_norms_signs_and_order(length, dtype, data):
    count = data.draw(st.integers(1, min(length, 64)))
    found = subspace_filters(length, count, np.dtype(dtype))
    assert (found.filters.shape, found.eigenvalues.shape) == ((count, length), (count,))
    assert (found.filters.dtype, found.eigenvalues.dtype) == (np.float64, np.float64)
    # rounding of the precision it works in: measured 5e-15 and 3e-7
    assert np.abs(found.filters @ found.filters.T - np.eye(count)).max() < 100 * np.finfo(dtype).eps
    assert np.all(found.filters[:, 0] >= 0)
    assert np.all(np.diff(found.eigenvalues) <= 0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_same_seed_gives_the_same_bank_and_another_seed_other_noise(dtype):
    first, again, other = (subspace_filters(256, 32, np.dtype(dtype), seed).filters for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert np.abs(first[-1] - other[-1]).max() > 1e-3
