"""Every form of the spectral features agrees with the definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from es_ssm.bank import FilterBank
from es_ssm.chunks import CPU, has_form
from es_ssm.conv import (
    features_chunked,
    features_direct,
    features_fft,
    features_step,
    initial_state,
    spectral_features,
)

# Relative error of the worst channel. The chunked and the step form rest on a state space that is exact to
# 1e-6 (realize's default). They come out at 6e-7 or better, but at 1.0e-6 in either precision, the worst of
# 150 inputs at 2.0e-6, where 32 channels meet a horizon of 100. The FFT in float32 comes out at 2e-7.
TOLERANCE = {torch.float32: 3e-6, torch.float64: 3e-6}
FFT_TOLERANCE = {torch.float32: 5e-7, torch.float64: 1e-13}


def by_steps(u, bank, budget):
    state = initial_state(bank, budget, u.shape[0], u.shape[2], u)
    features = []
    for t in range(u.shape[1]):
        found, state = features_step(u[:, t], state, bank, budget)
        features.append(found)
    return torch.stack(features, dim=1)


def worst_channel(found, expected):
    size = expected.pow(2).sum((0, 1, 3))
    return ((found - expected).pow(2).sum((0, 1, 3)) / size).sqrt().max().item()


SHAPES = [  # horizon, length, channels: odd, prime, powers of two, full and shorter, few and many channels
    (1, 1, 1),
    (3, 2, 2),
    (32, 32, 32),
    (60, 53, 20),
    (97, 97, 32),
    (100, 99, 32),
    (128, 65, 8),
    (256, 256, 32),
    (513, 509, 16),
    (1024, 1000, 32),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("horizon", "length", "budget"), SHAPES)
def test_all_forms_agree_with_the_definition(horizon, length, budget, dtype):
    bank = FilterBank(horizon)
    u = torch.randn(2, length, 3, dtype=dtype)
    expected = features_direct(u, bank, budget)
    assert worst_channel(features_fft(u, bank, budget), expected) < FFT_TOLERANCE[dtype]
    assert worst_channel(features_chunked(u, bank, budget), expected) < TOLERANCE[dtype]
    assert worst_channel(by_steps(u, bank, budget), expected) < TOLERANCE[dtype]


def test_the_definition_is_a_causal_convolution_with_the_filters():
    from es_ssm import hankel_filters

    filters, _ = hankel_filters(40, 5)
    u = torch.randn(1, 33, 2, dtype=torch.float64)
    features = features_direct(u, FilterBank(40), 5)
    for k in range(5):
        for t in (0, 1, 7, 32):
            by_hand = sum(filters[k, lag] * u[0, t - lag] for lag in range(t + 1))
            torch.testing.assert_close(features[0, t, k], by_hand, rtol=1e-12, atol=1e-14)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_forms_agree_over_random_shapes(data):
    horizon = data.draw(st.integers(1, 300))
    length = data.draw(st.integers(1, horizon))
    budget = data.draw(st.integers(1, min(horizon, 32)))
    chunk = data.draw(st.integers(1, 130))
    u = torch.randn(data.draw(st.integers(1, 3)), length, data.draw(st.integers(1, 4)))
    bank = FilterBank(horizon)
    expected = features_direct(u, bank, budget)
    scale = u.norm()  # not the channel's own size: a short input may have next to nothing of a channel
    for found in (
        features_chunked(u, bank, budget, chunk),
        features_fft(u, bank, budget),
        by_steps(u, bank, budget),
    ):
        assert (found - expected).norm() < 4e-6 * scale


@pytest.mark.parametrize("features", [features_fft, features_chunked, spectral_features])
def test_gradients_agree_with_the_definition(features):
    bank, budget = FilterBank(150), 16
    u = torch.randn(2, 149, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 149, budget, 3, dtype=torch.float64)
    (expected,) = torch.autograd.grad((features_direct(u, bank, budget) * weight).sum(), u)
    (found,) = torch.autograd.grad((features(u, bank, budget) * weight).sum(), u)
    assert (found - expected).norm() < 1e-6 * expected.norm()


@pytest.mark.parametrize("features", [features_direct, features_fft, features_chunked])
def test_nothing_reaches_an_earlier_position(features):
    bank = FilterBank(200)
    u = torch.randn(1, 200, 2, dtype=torch.float64)
    changed = u.clone()
    changed[:, 120:] += 1
    difference = features(changed, bank, 8) - features(u, bank, 8)
    assert difference[:, :120].abs().max() < 1e-13  # an FFT leaves rounding; the others leave exactly nothing
    assert difference[:, 120].abs().max() > 1e-3


@pytest.mark.parametrize("features", [features_direct, features_fft, features_chunked, spectral_features])
def test_an_input_beyond_the_horizon_is_refused(features):
    with pytest.raises(ValueError, match=r"length of the input must be a whole number from 1 to 50, got 51"):
        features(torch.randn(1, 51, 2), FilterBank(50), 4)


def test_a_step_beyond_the_horizon_is_refused():
    bank = FilterBank(4)
    state = initial_state(bank, 2, 1, 1, torch.zeros(1))
    for _ in range(4):
        _, state = features_step(torch.ones(1, 1), state, bank, 2)
    with pytest.raises(ValueError, match="step 5 is beyond the filters' horizon of 4"):
        features_step(torch.ones(1, 1), state, bank, 2)


@pytest.mark.parametrize("features", [features_fft, features_chunked])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_features_are_float32_under_autocast_and_for_low_precision_inputs(features, dtype):
    bank = FilterBank(100)
    u = torch.randn(2, 100, 3)
    with torch.autocast("cpu", dtype=dtype):
        found = features(u, bank, 8)
    assert found.dtype == torch.float32
    assert torch.equal(found, features(u, bank, 8))
    assert features(u.to(dtype), bank, 8).dtype == torch.float32


@pytest.mark.parametrize(
    ("horizon", "budget"), [(155, 40), (180, 40), (200, 40), (263, 44), (400, 48), (416, 48), (2048, 48)]
)
def test_more_channels_than_32_are_accurate_by_one_way_or_another(horizon, budget):
    """The step's state space is good here, but for all save the last its powers are not."""
    bank, u = FilterBank(horizon), torch.randn(1, horizon, 4)
    assert bank.has_state_space(budget)
    assert has_form(bank, budget, horizon, CPU.chunk) == (horizon == 2048)
    expected = features_direct(u, bank, budget)
    assert worst_channel(spectral_features(u, bank, budget), expected) < TOLERANCE[torch.float32]
    assert worst_channel(by_steps(u, bank, budget), expected) < TOLERANCE[torch.float32]


def test_where_no_state_space_exists_the_features_come_by_fft():
    bank, u = FilterBank(128), torch.randn(1, 128, 2)
    assert not bank.has_state_space(64)
    with pytest.raises(ValueError, match="no state space"):
        features_chunked(u, bank, 64)
    assert torch.equal(spectral_features(u, bank, 64), features_fft(u, bank, 64))


def test_forms_made_in_inference_mode_serve_training():
    bank = FilterBank(77)
    with torch.inference_mode():
        spectral_features(torch.randn(1, 77, 2), bank, 5)
    u = torch.randn(1, 77, 2, requires_grad=True)
    spectral_features(u, bank, 5).sum().backward()
    assert torch.isfinite(u.grad).all()


def test_forms_are_shared_and_do_not_depend_on_who_asks():
    like = torch.zeros(1)
    assert FilterBank(90).taps(7, like) is FilterBank(90).taps(7, like)
    small, large = FilterBank(90).chunked(7, 32, like), FilterBank(90).chunked(7, 32, like.double())
    assert small.inside.dtype == torch.float32
    assert large.inside.dtype == torch.float64
    assert small.carry is large.carry
    assert torch.equal(FilterBank(90).taps(4, like), FilterBank(90).taps(7, like)[:4])


def test_the_chunked_form_is_well_scaled_even_where_channels_are_nearly_dependent():
    for horizon, budget in ((100, 32), (128, 32), (512, 32), (2048, 32)):
        inside = FilterBank(horizon).chunked(budget, 64, torch.zeros(1)).inside
        assert inside.abs().max() <= 1.0
