"""Spectral features: u (B, L, D) -> (Phi_k * u) for k = 1..K, as (B, L, K, D). Four ways, one answer.

    features_direct    the definition, O(L^2), in float64: the oracle of the other three
    features_fft       the paper's path (appendix C.2): one batched FFT of length 2L
    features_chunked   matrix products within chunks of time, a small state between them
    features_step      one step of time with explicit state

All take (u, bank, budget) and work in float32 with autocast off, or in float64 if u is float64. An input
may be shorter than the bank's horizon, never longer: the filters say nothing about lags beyond it.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .bank import FilterBank
from .errors import whole

DEFAULT_CHUNK = 64


class FeatureState(NamedTuple):
    """What one feature stream remembers: n numbers a feature, and how many steps it has seen."""

    x: Float[Tensor, "B n D"]
    position: int


def features_direct(u: Float[Tensor, "B L D"], bank: FilterBank, budget: int) -> Float[Tensor, "B L K D"]:
    """sum over tau <= t of phi_k(tau) u(t - tau), channel by channel as Toeplitz products in float64."""
    u = _checked(u, bank).double()
    steps = u.shape[1]
    taps = bank.taps(budget, u)
    lag = torch.arange(steps)[:, None] - torch.arange(steps)
    toeplitz = [torch.where(lag.to(u.device) >= 0, tap[lag.abs()], 0.0) for tap in taps]
    return torch.stack([matrix @ u for matrix in toeplitz], dim=2)


def features_fft(u: Float[Tensor, "B L D"], bank: FilterBank, budget: int) -> Float[Tensor, "B L K D"]:
    """One real FFT of length 2L, a product with the filters' transforms, and one inverse."""
    with _full_precision(u):
        u = _real(_checked(u, bank))
        n = 2 * bank.length
        spectrum = torch.fft.rfft(u.transpose(1, 2), n=n)[:, :, None]  # (B, D, 1, L+1)
        product = torch.fft.irfft(spectrum * bank.transforms(budget, u), n=n)
        return product[..., : u.shape[1]].permute(0, 3, 2, 1)


def features_chunked(
    u: Float[Tensor, "B L D"], bank: FilterBank, budget: int, chunk: int = DEFAULT_CHUNK
) -> Float[Tensor, "B L K D"]:
    """Toeplitz products within chunks of `chunk` steps; all that came before enters through the state."""
    with _full_precision(u):
        u = _real(_checked(u, bank))
        batch, steps, width = u.shape
        chunk = min(chunk, bank.length)
        form = bank.chunked(budget, chunk, u)
        missing = -steps % chunk  # zeros in front: so no chunk starts later than L - T, as the form supposes
        chunks = F.pad(u, (0, 0, missing, 0)).unflatten(1, (-1, chunk))  # (B, C, T, D)
        gains = form.carry @ chunks.double()  # (B, C, n, D): what each chunk adds to the state
        state = torch.zeros_like(gains[:, 0])
        before = []
        for gain in gains.unbind(1):
            before.append(state)
            state = form.advance @ state + gain
        seen = torch.cat([chunks, torch.stack(before, dim=1).to(u.dtype)], dim=2)  # (B, C, T+n, D)
        features = form.inside.flatten(0, 1) @ seen  # (B, C, T*K, D)
        return features.view(batch, -1, budget, width)[:, missing:]


def spectral_features(u: Float[Tensor, "B L D"], bank: FilterBank, budget: int) -> Float[Tensor, "B L K D"]:
    """By matrix products where the bank has a state space, by FFT where it has none."""
    features = features_chunked if bank.has_state_space(budget) else features_fft
    return features(u, bank, budget)


def initial_state(bank: FilterBank, budget: int, batch: int, width: int, like: Tensor) -> FeatureState:
    """The state before the first step."""
    size = len(bank.realization(budget).B)
    return FeatureState(like.new_zeros(batch, size, width, dtype=torch.float64), 0)


def features_step(
    u: Float[Tensor, "B D"], state: FeatureState, bank: FilterBank, budget: int
) -> tuple[Float[Tensor, "B K D"], FeatureState]:
    """The features of one more step, and the state after it: in float64, so that errors do not add up."""
    if state.position >= bank.length:
        raise ValueError(
            f"step {state.position + 1} is beyond the filters' horizon of {bank.length}: "
            "start a new state, or use a model with a longer max_length"
        )
    form = bank.step(budget, state.x)
    x = form.a @ state.x + form.b[:, None] * u[:, None].to(state.x.dtype)
    return x[:, :budget].to(_real(u).dtype), FeatureState(x, state.position + 1)


def _full_precision(u: Tensor) -> AbstractContextManager[object]:
    """Autocast off, on devices that have it."""
    kind = u.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def _checked(u: Tensor, bank: FilterBank) -> Tensor:
    whole("length of the input", u.shape[1], 1, bank.length)
    return u


def _real(u: Tensor) -> Tensor:
    return u if u.dtype == torch.float64 else u.float()
