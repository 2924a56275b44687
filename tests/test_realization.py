"""The bank as a small linear system: the errors it states are the true ones, and the states are few."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_ssm.filters import hankel_filters
from es_ssm.realization import Realization, impulse_response, realize

# rows: horizon, channels, the most states that they may take at the default tolerance of 1e-6
STATES = [
    (2048, 8, 22),
    (2048, 16, 29),
    (2048, 32, 44),
    (16384, 8, 26),
    (16384, 16, 34),
    (16384, 32, 47),
]
BANKS = [row[:2] for row in STATES]


@cache
def bank(length: int, count: int) -> np.ndarray:
    return hankel_filters(length, count).filters


@cache
def system(length: int, count: int) -> Realization:
    return realize(bank(length, count))


def stepped(found: Realization, length: int) -> np.ndarray:
    """C A^t B for t below `length`, by the recursion x <- A x itself."""
    state, features = found.B, []
    for _ in range(length):
        features.append(found.C @ state)
        state = found.A @ state
    return np.stack(features, axis=1)


def true_errors(found: Realization, filters: np.ndarray) -> np.ndarray:
    return np.linalg.norm(stepped(found, filters.shape[1]) - filters, axis=1)


@pytest.mark.parametrize(("length", "count", "most"), STATES)
def test_the_state_is_small_and_the_tolerance_kept(length, count, most):
    found = system(length, count)
    assert len(found.B) <= most
    assert true_errors(found, bank(length, count)).max() <= 1e-6


@pytest.mark.parametrize(("length", "count"), BANKS)
def test_the_stated_errors_are_those_of_the_recursion(length, count):
    found = system(length, count)
    assert found.errors == pytest.approx(true_errors(found, bank(length, count)), rel=1e-3, abs=1e-11)


@pytest.mark.parametrize(("length", "count"), BANKS)
def test_the_recursion_is_stable_and_hardly_amplifies(length, count):
    found = system(length, count)
    assert np.abs(np.linalg.eigvals(found.A)).max() < 1
    assert np.linalg.norm(found.A, 2) < 1.1


@settings(max_examples=30, deadline=None)
@given(length=st.integers(1, 400), count=st.integers(1, 16), tolerance=st.floats(1e-8, 1e-2))
def test_shapes_and_errors_at_any_length(length, count, tolerance):
    filters = bank(length, min(count, length))
    found = realize(filters, tolerance)
    states = len(found.B)
    assert (found.A.shape, found.C.shape) == ((states, states), (len(filters), states))
    assert {array.dtype for array in found} == {np.dtype(np.float64)}
    assert len(filters) <= states <= min(length, len(filters) + 24)
    assert found.errors.max() <= tolerance
    # the doubling and the recursion round differently: by 4e-11 at worst, with 17 states over 18 steps
    assert found.errors == pytest.approx(true_errors(found, filters), rel=1e-3, abs=1e-2 * tolerance)


def test_fewer_channels_take_fewer_states():
    sizes = [len(realize(bank(2048, count)).B) for count in (1, 2, 4, 8, 16, 32)]
    assert sizes == sorted(set(sizes))


def test_a_looser_tolerance_takes_fewer_states():
    sizes = [len(realize(bank(2048, 16), tolerance).B) for tolerance in (1e-8, 1e-6, 1e-4, 1e-2)]
    assert sizes == sorted(set(sizes), reverse=True)


def least_squares(length: int, count: int, states: int) -> Realization:
    """The same construction by a general solver."""
    phi = bank(length, states)
    a = np.linalg.lstsq(phi[:, :-1].T, phi[:, 1:].T, rcond=None)[0].T
    return Realization(a, phi[:, 0], np.eye(states)[:count], np.full(count, np.nan))


def test_the_closed_form_is_the_least_squares_solution():
    found = system(2048, 16)
    assert np.abs(found.A - least_squares(2048, 16, len(found.B)).A).max() < 1e-12


def test_one_state_fewer_would_miss_the_tolerance():
    fewer = least_squares(2048, 16, len(system(2048, 16).B) - 1)
    assert true_errors(fewer, bank(2048, 16)).max() > 1e-6


@pytest.mark.parametrize("length", [1, 2, 8, 32, 64])
def test_with_as_many_states_as_steps_the_system_is_the_exact_shift(length):
    found = realize(bank(length, length), 1e-12)
    assert len(found.B) == length
    assert true_errors(found, bank(length, length)).max() < 1e-12


def test_filters_may_be_any_rows_in_the_span_of_the_leading_channels():
    mixed = np.random.default_rng(0).standard_normal((5, 8)) @ bank(512, 8)
    found = realize(mixed, 1e-6)
    assert true_errors(found, mixed).max() <= 1e-6


def test_what_a_caller_does_to_a_system_leaves_the_next_one_alone():
    first = realize(bank(100, 4))
    kept = [array.copy() for array in first]
    for array in first:
        array[...] = np.nan
    assert all(np.array_equal(*pair) for pair in zip(kept, realize(bank(100, 4)), strict=True))


def test_the_impulse_response_is_the_recursion():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 4)) / 3, rng.standard_normal(4)
    for length in (1, 2, 3, 7, 8, 9):
        expected = np.stack([np.linalg.matrix_power(a, t) @ b for t in range(length)], axis=1)
        assert impulse_response(a, b, length) == pytest.approx(expected, abs=1e-14)


# Refusals


def test_where_no_state_reaches_the_tolerance_the_refusal_says_how_close_it_came():
    with pytest.raises(
        ValueError,
        match=r"^no state space of up to 88 states gives 64 filters of length 128 within tolerance 1e-06: "
        r"the best reached [0-9.]+e[+-]\d+ with \d+ states; ",
    ):
        realize(bank(128, 64))


def test_the_best_that_the_refusal_names_is_within_reach():
    with pytest.raises(ValueError) as refusal:
        realize(bank(256, 32), 1e-15)
    best = float(str(refusal.value).split("best reached ")[1].split()[0])
    assert realize(bank(256, 32), 1.06 * best).errors.max() == pytest.approx(best, rel=0.06)


def test_filters_outside_the_span_are_refused():
    with pytest.raises(ValueError, match=r"the best reached 9.9e-01 with 25 states"):
        realize(np.eye(1, 512, 300))


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize("shape", [(), (8,), (2, 2, 8)])
def test_filters_that_are_not_a_matrix_are_refused(shape):
    with pytest.raises(ValueError) as refusal:
        realize(np.ones(shape))
    assert str(refusal.value) == f"filters must be an array of shape (K, L), got shape {shape}"


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        ((0, 8), "number of filters must be a whole number from 1 to 8, got 0"),
        ((9, 8), "number of filters must be a whole number from 1 to 8, got 9"),
        ((65, 100), "number of filters must be a whole number from 1 to 64, got 65"),
        ((1, 0), "length of the filters must be a whole number from 1 to 131072, got 0"),
        ((1, 131_073), "length of the filters must be a whole number from 1 to 131072, got 131073"),
    ],
)
def test_filters_that_are_too_many_or_too_long_are_refused(shape, complaint):
    with pytest.raises(ValueError) as refusal:
        realize(np.ones(shape))
    assert str(refusal.value) == complaint


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(
    ("filters", "complaint"),
    [
        ("abc", "got 'abc'"),
        (None, "got shape ()"),
        ([[1, 2], [3]], "got [[1, 2], [3]]"),
    ],
)
def test_what_is_no_array_is_refused(filters, complaint):
    with pytest.raises(ValueError) as refusal:
        realize(filters)
    assert str(refusal.value) == f"filters must be an array of shape (K, L), {complaint}"


@pytest.mark.usefixtures("as_users_run")
def test_what_hankel_filters_returns_is_refused_by_name():
    with pytest.raises(ValueError) as refusal:
        realize(hankel_filters(16, 2))
    expected = "filters must be an array of shape (K, L), got a Filters: give its .filters"
    assert str(refusal.value) == expected


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_filters_that_are_not_finite_are_refused(value):
    filters = bank(100, 4).copy()
    filters[2, 5] = value
    with pytest.raises(ValueError, match=r"^filters must be finite, got 1 values that are not$"):
        realize(filters)


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize("tolerance", [0.0, -1e-6, float("nan"), float("inf"), "a", None])
def test_a_tolerance_that_is_not_positive_is_refused(tolerance):
    with pytest.raises(ValueError) as refusal:
        realize(bank(100, 4), tolerance)
    assert str(refusal.value) == f"tolerance must be a finite number above 0, got {tolerance!r}"
