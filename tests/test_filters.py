"""The exact filter bank, against 300-digit arithmetic, against a quadrature, and against what must hold."""

import runpy
import tracemalloc
from functools import cache
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from scipy.linalg import lapack, qr

from es_ssm import filters as module
from es_ssm.filters import MAX_FILTERS, MAX_LENGTH, Filters, exact_filters, hankel_filters

GOLDEN = Path(__file__).with_name("golden")
GOLDEN_LENGTHS = (32, 60, 64, 100, 256, 512)

# The largest figures measured are 3e-14 (L = 512), 3e-15 and 4e-15; the rest is for other BLAS libraries.
NEAR_IN_NORM = 1e-13
NEAR_EIGENVALUE = 1e-14
ORTHONORMAL = 2e-14

lengths = st.integers(1, 600)
several = settings(max_examples=40, deadline=None)  # the machine may be busy


def distances(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    return np.linalg.norm(found - true, axis=1)


def most(length: int) -> int:
    return min(length, MAX_FILTERS)


def sign_changes(channel: np.ndarray, noise: float) -> int:
    certain = channel[np.abs(channel) > noise]
    return int(np.sum(certain[1:] * certain[:-1] < 0))


# Against 300-digit arithmetic


@cache
def golden(length: int) -> Filters:
    arrays = load_file(GOLDEN / "filters.safetensors")
    return Filters(arrays[f"filters_{length}"], arrays[f"eigenvalues_{length}"])


@pytest.mark.parametrize("length", GOLDEN_LENGTHS)
def test_every_channel_is_the_true_one(length):
    found, true = hankel_filters(length, most(length)), golden(length)
    assert distances(found.filters, true.filters).max() < NEAR_IN_NORM


@pytest.mark.parametrize("length", GOLDEN_LENGTHS)
def test_every_eigenvalue_is_relatively_accurate_down_to_1e97(length):
    found, true = hankel_filters(length, most(length)), golden(length)
    assert np.abs(found.eigenvalues / true.eigenvalues - 1).max() < NEAR_EIGENVALUE


@pytest.mark.parametrize("length", GOLDEN_LENGTHS)
def test_the_golden_channels_are_orthonormal_and_channel_k_changes_sign_k_times(length):
    """So the file itself is the leading eigenbasis in order: Z is strictly totally positive."""
    true = golden(length).filters
    assert true.shape == (most(length), length)
    assert np.abs(true @ true.T - np.eye(len(true))).max() < 3e-15  # rounding of the entries
    assert [sign_changes(channel, 0) for channel in true] == list(range(most(length)))


def test_the_golden_file_is_what_its_script_makes():
    script = runpy.run_path(str(GOLDEN / "make_filters.py"))
    with mpmath.workdps(script["DIGITS"]):
        filters, values = script["eigenpairs"](32)
    assert np.array_equal((filters / script["ONE"]).astype(float), golden(32).filters)
    assert np.array_equal((values / script["ONE"]).astype(float), golden(32).eigenvalues)


@pytest.mark.parametrize("length", range(1, 11))
def test_the_shortest_lengths_are_true_too(length):
    script = runpy.run_path(str(GOLDEN / "make_filters.py"))
    with mpmath.workdps(script["DIGITS"]):
        filters, values = script["eigenpairs"](length)
    found = hankel_filters(length, length)
    assert distances(found.filters, (filters / script["ONE"]).astype(float)).max() < NEAR_IN_NORM
    assert np.abs(found.eigenvalues / (values / script["ONE"]).astype(float) - 1).max() < NEAR_EIGENVALUE


# Against a quadrature of Z's own integral: long filters, and nothing in common with the Cauchy factor


def quadrature_filters(length: int, count: int, step: float) -> Filters:
    """From Z = int (1-r)^2 v(r) v(r)' dr, v(r) = (1, r, .., r^(L-1)), by the tanh-sinh rule.

    With r = 1 / (1 + e^-u), u = pi sinh(s), both ends are reached doubly exponentially, and the gap 1 - r is
    known without cancellation. Columns sqrt(weight) (1-r) v(r), the largest first, are a factor of Z.
    """
    s = np.arange(-3.5, 3.5, step)  # beyond, 1-r or r is below 1e-22
    u = np.pi * np.sinh(s)
    r, gap = 1 / (1 + np.exp(-u)), 1 / (1 + np.exp(u))
    weight = step * np.pi * np.cosh(s) * r * gap  # ds times dr/ds
    log_r = np.where(gap < 0.5, np.log1p(-np.minimum(gap, 0.5)), np.log(r))
    factor = np.exp(np.outer(np.arange(length), log_r)) * (np.sqrt(weight) * gap)
    factor = factor[:, np.argsort(-np.linalg.norm(factor, axis=0))]

    q, small, _ = qr(factor, mode="economic", pivoting=True)
    singular, _, v, work, _, info = lapack.dgejsv(
        np.asfortranarray(small.T), joba=0, jobu=0, jobv=0, jobr=0, jobp=0
    )
    assert info == 0
    channels = (q @ v[:, :count]).T
    return Filters(channels * np.sign(channels[:, :1]), np.square(singular * (work[0] / work[1]))[:count])


@pytest.mark.parametrize("length", [1024, 2048, 16384])
@pytest.mark.parametrize("step", [0.025, 0.02])
def test_a_quadrature_of_the_integral_gives_the_same_channels(length, step):
    """Rounding of the quadrature's factor, not ours, limits this: measured 5e-9 at 1024, 8e-11 at 16384."""
    found, other = hankel_filters(length, 32), quadrature_filters(length, 32, step)
    assert distances(found.filters, other.filters).max() < 1e-8
    assert np.abs(found.eigenvalues / other.eigenvalues - 1).max() < 1e-8


@pytest.mark.parametrize("length", [1024, 2048, 16384])
def test_the_quadrature_holds_the_lower_half_of_the_channels_tighter(length):
    """Here the quadrature is the better one: our row differences cost 2e-13 at 2048 and 1e-12 at 16384."""
    found, other = hankel_filters(length, 16), quadrature_filters(length, 16, 0.02)
    assert distances(found.filters, other.filters).max() < 3e-12


@pytest.mark.slow
def test_more_columns_of_the_factor_change_nothing(monkeypatch):
    found = exact_filters(16384, MAX_FILTERS + 24)  # as many as a realization takes
    monkeypatch.setattr(module, "PIVOTS", 240)
    finer = exact_filters(16384, MAX_FILTERS + 24)
    assert distances(found.filters, finer.filters).max() < NEAR_IN_NORM
    assert np.abs(found.eigenvalues / finer.eigenvalues - 1).max() < NEAR_EIGENVALUE


@pytest.mark.slow
def test_the_longest_bank_is_sound_and_its_memory_is_linear_in_the_length():
    tracemalloc.start()
    try:
        found = exact_filters(MAX_LENGTH, MAX_FILTERS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # measured: three factors of L x 180 float64 and a bit; Z itself would be 137 GB
    assert peak < 4 * MAX_LENGTH * module.PIVOTS * 8
    assert np.abs(found.filters @ found.filters.T - np.eye(MAX_FILTERS)).max() < ORTHONORMAL
    assert np.all(np.diff(found.eigenvalues) < 0)
    assert [sign_changes(channel, 1e-11) for channel in found.filters[:32]] == list(range(32))


# What must hold at every length


@several
@given(length=lengths, data=st.data())
def test_shapes_types_and_order(length, data):
    count = data.draw(st.integers(1, most(length)))
    found = hankel_filters(length, count)
    assert (found.filters.shape, found.eigenvalues.shape) == ((count, length), (count,))
    assert (found.filters.dtype, found.eigenvalues.dtype) == (np.float64, np.float64)
    assert np.all(np.diff(found.eigenvalues) < 0)
    assert np.all(found.eigenvalues > 0)


@several
@given(length=lengths)
def test_channels_are_orthonormal(length):
    filters = hankel_filters(length, most(length)).filters
    assert np.abs(filters @ filters.T - np.eye(most(length))).max() < ORTHONORMAL


@several
@given(length=lengths)
def test_channels_start_positive_and_end_with_alternating_signs(length):
    """Channel k changes sign k times; entries below 1e-13 carry no sign."""
    filters = hankel_filters(length, most(length)).filters
    assert np.all(filters[:, 0] > 0)
    assert np.all(filters[:, -1] * (-1.0) ** np.arange(most(length)) > -1e-13)
    assert all(sign_changes(channel, 1e-13) <= k for k, channel in enumerate(filters))
    assert [sign_changes(channel, 1e-13) for channel in filters[:8]] == list(range(min(8, length)))


def test_the_larger_end_of_a_channel_decides_its_sign():
    """The smaller one may be rounding of either sign, as 1e-17 is here."""
    ends = np.array([[0.9, -1e-17], [1e-17, 0.9]])
    expected = np.array([[0.9, -1e-17], [1e-17, -0.9]])
    for signs in ([1, 1], [1, -1], [-1, 1], [-1, -1]):
        assert np.array_equal(module._oriented(np.array(signs)[:, None] * ends), expected)


@several
@given(length=lengths, data=st.data())
def test_a_channel_does_not_depend_on_how_many_are_asked_for(length, data):
    count = data.draw(st.integers(1, most(length)))
    few, all_of_them = hankel_filters(length, count), hankel_filters(length, most(length))
    assert np.abs(few.filters - all_of_them.filters[:count]).max() < 1e-15  # products of other shapes
    assert np.array_equal(few.eigenvalues, all_of_them.eigenvalues[:count])


@several
@given(length=lengths)
def test_channels_are_eigenvectors_of_the_matrix(length):
    """With Z written out, in float64: this tells much of the low channels and little of the high ones."""
    found = hankel_filters(length, most(length))
    q = np.add.outer(np.arange(1.0, length + 1), np.arange(1.0, length + 1))
    z = 2 / (q**3 - q)
    assert np.abs(found.filters @ z - found.eigenvalues[:, None] * found.filters).max() < 1e-14


@several
@given(length=lengths)
def test_eigenvalues_of_neighbouring_lengths_interlace(length):
    """Z of length L is a corner of Z of length L+1 (Cauchy); this binds the smallest eigenvalues too."""
    here, longer = (exact_filters(n, most(length)).eigenvalues for n in (length, length + 1))
    assert np.all(here < longer * (1 + NEAR_EIGENVALUE))
    assert np.all(longer[1:] < here[:-1])


# The public function: cache and refusals


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ES_SSM_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("own_cache")
def test_a_second_call_reads_the_cache(monkeypatch):
    first = hankel_filters(50, 5)
    monkeypatch.delattr(module, "exact_filters")  # it would be a NameError
    second = hankel_filters(50, 5)
    assert np.array_equal(first.filters, second.filters)
    assert np.array_equal(first.eigenvalues, second.eigenvalues)


def test_every_argument_has_its_own_entry(own_cache):
    banks = [
        (length, count, method)
        for length in (50, 51)
        for count in (4, 5)
        for method in ("exact", "subspace-float64", "subspace-float32")
    ]
    made = [hankel_filters(*bank).filters for bank in banks]
    assert len(list(own_cache.iterdir())) == len(banks)
    assert len({filters.tobytes() for filters in made}) == len(banks)
    for bank, filters in zip(banks, made, strict=True):
        assert np.array_equal(hankel_filters(*bank).filters, filters)


def test_the_exact_method_is_the_default():
    assert np.array_equal(hankel_filters(50, 5).filters, exact_filters(50, 5).filters)


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize("length", [0, -1, True, 2.0, "32", None, 131_073], ids=repr)
def test_a_wrong_length_is_refused(length):
    with pytest.raises(ValueError) as refusal:
        hankel_filters(length, 1)
    assert str(refusal.value) == f"length must be a whole number from 1 to 131072, got {length!r}"


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize("length", [1, 10, 64, 2048])
@pytest.mark.parametrize("count", [0, -1, True, 2.0, "8", None, "one too many"], ids=repr)
def test_a_wrong_number_of_filters_is_refused(length, count):
    count = most(length) + 1 if count == "one too many" else count
    with pytest.raises(ValueError) as refusal:
        hankel_filters(length, count)
    assert str(refusal.value) == f"n_filters must be a whole number from 1 to {most(length)}, got {count!r}"


@pytest.mark.usefixtures("as_users_run")
def test_a_wrong_method_is_refused():
    with pytest.raises(ValueError) as refusal:
        hankel_filters(32, 4, "exakt")
    assert str(refusal.value) == (
        "method must be one of exact, subspace-float64, subspace-float32, got 'exakt' (did you mean exact?)"
    )


@pytest.mark.usefixtures("as_users_run")
def test_whole_numbers_of_numpy_are_welcome_and_share_the_entry(own_cache):
    assert np.array_equal(hankel_filters(np.int64(50), np.uint8(5)).filters, hankel_filters(50, 5).filters)
    assert len(list(own_cache.iterdir())) == 1
