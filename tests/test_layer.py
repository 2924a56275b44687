"""The spectral layer is the paper's formula, causal, prefix-consistent, and precise under autocast."""

from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from es_ssm.bank import FilterBank
from es_ssm.conv import features_direct
from es_ssm.gates import GATES, AdaptiveGate, ChannelGate, UniformGate
from es_ssm.layer import SpectralLayer


def make_layer(d=6, n_filters=12, length=80, gate=AdaptiveGate, scale=1.0):
    layer = SpectralLayer(d, n_filters, FilterBank(length), gate(d, n_filters))
    with torch.no_grad():
        layer.projections.normal_(std=scale)
    return layer.double()


def formula(layer, u, budget):
    """Equation 4, term by term."""
    features = features_direct(u, layer.bank, budget)
    total = torch.zeros_like(u)
    for k in range(budget):
        hidden = torch.nn.functional.gelu(u @ layer.gate.hidden.weight.T + layer.gate.hidden.bias)
        logit = hidden @ layer.gate.logits.weight[k] + layer.gate.logits.bias[k]
        gate = torch.sigmoid(logit) / sqrt(budget)
        matrix = layer.projections[:, k]  # M_k
        total += gate[..., None] * (features[:, :, k] @ matrix.T)
    return total


@pytest.mark.parametrize("budget", [1, 2, 5, 12])
def test_the_layer_is_the_formula(budget):
    layer = make_layer()
    u = torch.randn(2, 77, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(u, budget), formula(layer, u, budget), rtol=1e-5, atol=1e-6)


def test_no_budget_means_the_full_one():
    layer, u = make_layer(), torch.randn(1, 30, 6, dtype=torch.float64)
    assert torch.equal(layer(u), layer(u, 12))


@settings(max_examples=15, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("gate", list(GATES.values()))
def test_a_change_never_moves_an_earlier_output(gate, data):
    length = data.draw(st.sampled_from([2, 31, 64, 100, 149]))  # few horizons: each costs its forms
    filters = data.draw(st.sampled_from([1, 2, min(length, 11)]))
    layer = make_layer(4, filters, length, gate)
    u = torch.randn(2, data.draw(st.integers(2, length)), 4, dtype=torch.float64)
    t = data.draw(st.integers(1, u.shape[1] - 1))
    changed = u.clone()
    changed[:, t:] = torch.randn_like(changed[:, t:])
    for budget in range(1, filters + 1):
        assert torch.equal(layer(u, budget)[:, :t], layer(changed, budget)[:, :t])


@pytest.mark.parametrize("gate", list(GATES.values()))
def test_removed_channels_move_nothing_and_get_no_gradient(gate):
    """Remarks 1 and 2 of the paper."""
    layer, u = make_layer(gate=gate), torch.randn(2, 60, 6, dtype=torch.float64)
    before = layer(u, 5)
    before.square().sum().backward()
    channels = {"projections", "gate.logits", "gate.logits.weight", "gate.logits.bias"}
    touched = {name: p for name, p in layer.named_parameters() if name in channels}
    for name, parameter in touched.items():
        axis = 1 if name == "projections" else 0
        kept, removed = parameter.grad.tensor_split([5], axis)
        assert torch.all(removed == 0)
        assert kept.abs().sum() > 0
        with torch.no_grad():
            parameter.narrow(axis, 5, 7).normal_()
    assert torch.equal(layer(u, 5), before)


def test_spectral_features_keep_their_digits_under_autocast():
    """What bfloat16 rounds is what the projection takes and gives, M_k and the gate; not u, not the features.

    Either of those rounded as well puts the distance at 2e-3.
    """
    layer, u = make_layer(d=48).float(), torch.randn(2, 80, 48)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, gates = layer(u), layer.gate(u, 12) / sqrt(12)
    assert out.dtype == gates.dtype == torch.bfloat16
    gated = (features_direct(u, layer.bank, 12) * gates.double()[..., None]).bfloat16().double()
    expected = torch.einsum("blkd,ekd->ble", gated, layer.projections.bfloat16().double())
    assert (out - expected.bfloat16()).norm() < 1e-3 * expected.norm()


def test_nothing_of_a_masked_token_arrives_not_even_nan():
    layer, u = make_layer(), torch.randn(1, 40, 6, dtype=torch.float64)
    mask = torch.arange(40) >= 5
    poisoned = u.clone()
    poisoned[:, :5] = torch.nan
    assert torch.equal(layer(poisoned, 7, mask[None])[:, 5:], layer(u, 7, mask[None])[:, 5:])


def test_masked_tokens_are_as_good_as_absent():
    layer = make_layer()
    u = torch.randn(1, 50, 6, dtype=torch.float64)
    padded = torch.cat(
        [torch.randn(1, 9, 6, dtype=torch.float64), u, torch.randn(1, 4, 6, dtype=torch.float64)], 1
    )
    mask = torch.zeros(1, 63, dtype=torch.bool)
    mask[:, 9:59] = True
    torch.testing.assert_close(layer(padded, 7, mask)[:, 9:59], layer(u, 7), rtol=1e-6, atol=1e-6)


def test_initialisation_is_the_papers():
    layer = SpectralLayer(64, 32, FilterBank(64), AdaptiveGate(64, 32))
    assert layer.projections.std().item() == pytest.approx(1e-3, rel=0.02)
    assert torch.all(layer.gate.logits.bias == -2)
    assert layer.gate.hidden.out_features == 32
    gates = layer.gate(torch.randn(2, 8, 64), 32)
    assert gates.mean().item() == pytest.approx(0.12, abs=0.03)


def test_gates_have_one_signature_and_differ_as_the_ablation_says():
    u = torch.randn(2, 9, 8)
    for gate in GATES.values():
        assert gate(8, 5)(u, 3).shape == (2, 9, 3)
    assert AdaptiveGate(8, 5)(u, 3).std(dim=1).min() > 0
    assert ChannelGate(8, 5)(u, 3).std(dim=1).max() == 0
    assert torch.all(UniformGate(8, 5)(u, 3) == 1)


@pytest.mark.parametrize("bad", [0, -1, 13, 2.0, True, "4"])
@pytest.mark.usefixtures("as_users_run")
def test_a_budget_that_is_not_the_layers_is_refused(bad):
    with pytest.raises(ValueError, match="budget must be a whole number from 1 to 12, got "):
        make_layer()(torch.randn(1, 5, 6, dtype=torch.float64), bad)


def test_more_filters_than_there_are_is_refused():
    with pytest.raises(ValueError, match="n_filters must be a whole number from 1 to 10, got 11"):
        make_layer(n_filters=11, length=10)
