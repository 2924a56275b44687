"""Truncation: bit for bit the model at that budget, physically smaller, independent of what was removed."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import HEADS, config, inputs, make

from es_ssm import truncate


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("gate", ["adaptive", "channel", "uniform"])
def test_every_budget_is_a_model_of_its_own(kind, gate):
    model, x = make(kind, gate=gate), inputs(kind)
    sizes = []
    for budget in model.budgets:
        small = truncate(model, budget)
        assert torch.equal(small(x), model(x, budget))
        assert small.config == model.config.truncated(budget)
        assert small.budgets[-1] == budget
        sizes.append(sum(p.numel() for p in small.parameters()))
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("gate", ["adaptive", "channel", "uniform"])
def test_removed_channels_move_nothing_and_get_no_gradient(kind, gate):
    """Remarks 1 and 2 of the paper, for whole models: what is beyond the budget might as well be absent."""
    model, x = make(kind, gate=gate), inputs(kind)
    full = dict(model.named_parameters())
    for budget in (1, 4, 11, (3, 12, 5)):
        model.zero_grad()
        before = model(x, budget)
        before.square().sum().backward()
        beyond = {}
        for name, kept in truncate(model, budget).named_parameters():
            inside = tuple(slice(size) for size in kept.shape)
            beyond[name] = torch.ones_like(full[name], dtype=torch.bool)
            beyond[name][inside] = False
            assert full[name].grad[inside].abs().sum() > 0, name
            assert torch.all(full[name].grad[beyond[name]] == 0)
        assert any(outside.any() for outside in beyond.values())
        changed = copy.deepcopy(model)
        with torch.no_grad():
            for name, parameter in changed.named_parameters():
                parameter[beyond[name]] = 1e6
        assert torch.equal(changed(x, budget), before)
        assert not torch.equal(changed(x), model(x))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_budget_by_layer_and_again(data):
    """Truncating a truncation equals truncating once."""
    model, x = make(), inputs()
    first = data.draw(st.tuples(*[st.integers(1, 12)] * 3))
    second = tuple(data.draw(st.integers(1, most)) for most in first)
    once, twice = truncate(model, second), truncate(truncate(model, first), second)
    assert torch.equal(model(x, second), once(x))
    assert torch.equal(once(x), twice(x))
    assert once.config.n_filters == twice.config.n_filters


def test_a_truncation_shares_nothing_with_its_origin():
    model, x = make(), inputs()
    small = truncate(model, 4)
    before = small(x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    assert torch.equal(small(x), before)
    assert all(p.untyped_storage().nbytes() == p.numel() * 4 for p in small.parameters())


def test_a_truncation_keeps_mode_precision_and_frozen_parameters():
    model = make().double().train()
    model.embedding.weight.requires_grad_(False)
    small = model.truncate(3)
    assert small.training
    assert {p.dtype for p in small.parameters()} == {torch.float64}
    assert [n for n, p in small.named_parameters() if not p.requires_grad] == ["embedding.weight"]


def test_a_truncation_by_layer_lists_its_own_full_budget():
    small = truncate(make(), (3, 12, 6))
    assert small.budgets == (2, 3, (3, 12, 6))
    x = inputs()
    assert torch.equal(small(x), small(x, (3, 12, 6)))


def test_what_is_not_there_cannot_be_had():
    small = truncate(make(), 4)
    with pytest.raises(ValueError, match="budget must be a whole number from 1 to 4, got 5"):
        truncate(small, 5)
    with pytest.raises(ValueError, match="budget must be a whole number from 1 to 4, got 5"):
        small(inputs(), 5)


def test_training_a_truncation_works():
    small = truncate(make(), 4).train()
    small(inputs()).sum().backward()
    assert all(p.grad is not None for p in small.parameters())


def test_configurations_compare_by_value():
    assert config() == config()
    assert config() != config(d_model=18)
