"""The sampler is Algorithm 3, and its frequencies are those that the formulas give."""

import json
from collections import Counter
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ssm import BudgetSampler
from es_ssm.model import PAPER_BUDGETS


def algorithm_3(budgets, warmup, n_full, seed, steps):
    """The paper's pseudocode, line by line."""
    rng = np.random.default_rng(seed)
    k_min, k_bar = min(budgets), max(budgets)
    out = []
    for j in range(steps):
        if j < warmup or (n_full < inf and j % n_full == 0):
            out.append(k_bar)
        else:
            xi = rng.random()
            k_target = k_min * (k_bar / k_min) ** xi
            out.append(budgets[int(np.argmin([abs(k - k_target) for k in budgets]))])
    return out


@given(
    budgets=st.sets(st.integers(1, 64), min_size=1, max_size=10).map(sorted),
    warmup=st.integers(0, 20),
    n_full=st.one_of(st.just(inf), st.integers(1, 12)),
    seed=st.integers(0, 1000),
)
def test_the_sampler_is_algorithm_3(budgets, warmup, n_full, seed):
    sampler = BudgetSampler(budgets, warmup_steps=warmup, full_every=n_full, seed=seed)
    assert [sampler.sample(j)[0] for j in range(60)] == algorithm_3(budgets, warmup, n_full, seed, 60)


def test_frequencies_match_the_formulas():
    sampler = BudgetSampler(PAPER_BUDGETS, warmup_steps=100, full_every=8, seed=3)
    steps = range(100, 100 + 80_000)
    seen = Counter(sampler.sample(step)[0] for step in steps)
    for budget, p in sampler.probabilities().items():
        assert seen[budget] / len(steps) == pytest.approx(p, abs=4 * (p * (1 - p) / len(steps)) ** 0.5)
    for channel in (1, 2, 3, 7, 17, 32):
        included = sum(n for budget, n in seen.items() if budget >= channel) / len(steps)
        assert included == pytest.approx(sampler.inclusion(channel), abs=0.008)
    spent = sum(n * budget for budget, n in seen.items()) / len(steps)
    assert spent == pytest.approx(sampler.expected(float), rel=0.01)


def test_figures_of_the_paper():
    sampler = BudgetSampler(PAPER_BUDGETS)
    assert sampler.draw_probabilities()[32] == pytest.approx(0.048, abs=5e-4)
    assert sampler.probabilities()[32] == pytest.approx(0.167, abs=5e-4)
    inclusions = [sampler.inclusion(k) for k in range(1, 33)]
    assert inclusions == sorted(inclusions, reverse=True)
    assert inclusions[:2] == pytest.approx([1, 1])
    assert min(inclusions) >= 1 / 8


@given(
    budgets=st.sets(st.integers(1, 64), min_size=1, max_size=10).map(sorted),
    full_every=st.one_of(st.just(inf), st.integers(1, 12)),
)
def test_probabilities_are_a_distribution(budgets, full_every):
    sampler = BudgetSampler(budgets, full_every=full_every)
    for found in (sampler.draw_probabilities(), sampler.probabilities()):
        assert sum(found.values()) == pytest.approx(1)
        assert min(found.values()) > 0 or full_every == 1
    assert sampler.inclusion(1) == pytest.approx(1)
    assert sampler.expected(lambda _: 3.0) == pytest.approx(3)


def test_warmup_and_anchors_are_full_and_draw_nothing():
    sampler = BudgetSampler((2, 8), warmup_steps=5, full_every=4)
    start = sampler.state_dict()
    assert [sampler.sample(step) for step in range(5)] == [[8]] * 5
    assert sampler.sample(8) == [8]
    assert sampler.state_dict() == start


def test_cadence_one_is_no_budget_dropout():
    sampler = BudgetSampler(PAPER_BUDGETS, full_every=1)
    assert {sampler.sample(step)[0] for step in range(200)} == {32}


def test_micro_batches_share_a_budget_or_draw_their_own():
    shared = BudgetSampler(PAPER_BUDGETS)
    own = BudgetSampler(PAPER_BUDGETS, per_micro_batch=True)
    assert all(len(set(shared.sample(step, 4))) == 1 for step in range(50))
    drawn = [own.sample(step, 4) for step in range(50)]
    assert any(len(set(budgets)) > 1 for budgets in drawn)
    assert all(drawn[step] == [32] * 4 for step in range(0, 50, 8))  # the anchors of the LRA schedule


def test_equal_seeds_give_equal_sequences_whatever_else_draws():
    first, second = (BudgetSampler(PAPER_BUDGETS, seed=7) for _ in range(2))
    sequence = []
    for step in range(100):
        np.random.default_rng(0).random()
        sequence.append(first.sample(step))
    assert sequence == [second.sample(step) for step in range(100)]
    other = BudgetSampler(PAPER_BUDGETS, seed=8)
    assert sequence != [other.sample(step) for step in range(100)]


def test_a_saved_state_resumes_exactly_through_json():
    sampler = BudgetSampler(PAPER_BUDGETS, per_micro_batch=True, seed=1)
    for step in range(37):
        sampler.sample(step, 3)
    saved = json.loads(json.dumps(sampler.state_dict()))
    expected = [sampler.sample(step, 3) for step in range(37, 90)]
    resumed = BudgetSampler(PAPER_BUDGETS, per_micro_batch=True, seed=999)
    resumed.load_state_dict(saved)
    assert [resumed.sample(step, 3) for step in range(37, 90)] == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"budgets": ()}, "budgets must be whole numbers that ascend"),
        ({"budgets": (4, 2)}, "budgets must be whole numbers that ascend"),
        ({"budgets": 8}, "budgets must be a list of whole numbers, got 8"),
        ({"budgets": "28"}, "budgets must be a list of whole numbers, got '28'"),
        ({"budgets": None}, "budgets must be a list of whole numbers, got None"),
        ({"per_micro_batch": "no"}, "per_micro_batch must be of type bool, got 'no'"),
        ({"full_every": None}, "full_every must be a whole number of at least 1, got None"),
        ({"full_every": float("nan")}, "full_every must be a whole number of at least 1, got nan"),
        ({"budgets": (0, 2)}, "each of budgets must be a whole number of at least 1, got 0"),
        ({"warmup_steps": -1}, "warmup_steps must be a whole number of at least 0, got -1"),
        ({"full_every": 0}, "full_every must be a whole number of at least 1, got 0"),
        ({"full_every": 2.5}, "full_every must be a whole number of at least 1, got 2.5"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
    ],
)
@pytest.mark.usefixtures("as_users_run")
def test_bad_arguments_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        BudgetSampler(**{"budgets": (2, 4), **values})


def test_bad_calls_are_refused():
    sampler = BudgetSampler((2, 4))
    with pytest.raises(ValueError, match="step must be a whole number of at least 0, got -1"):
        sampler.sample(-1)
    with pytest.raises(ValueError, match="channel must be a whole number from 1 to 4, got 5"):
        sampler.inclusion(5)


@pytest.mark.usefixtures("as_users_run")
def test_a_state_that_is_not_this_samplers_is_refused():
    sampler = BudgetSampler((2, 4))
    good = sampler.state_dict()
    mersenne = np.random.Generator(np.random.MT19937(1)).bit_generator.state
    for state, message in (
        ({}, r"state must have the keys 'budgets' and 'generator', got \[\]"),
        (None, "state must be of type dict, got None"),
        (
            BudgetSampler((2, 8)).state_dict(),
            r"state must be that of a sampler of \[2, 4\], got \[2, 8\]",
        ),
        ({**good, "generator": 3}, "generator of state must be what state_dict gave, got 3"),
        ({**good, "generator": {}}, r"generator of state must be what state_dict gave, got \{\}"),
        ({**good, "generator": mersenne}, "generator of state must be what state_dict gave, got"),
    ):
        with pytest.raises(ValueError, match=message):
            sampler.load_state_dict(state)
    assert sampler.state_dict() == good
