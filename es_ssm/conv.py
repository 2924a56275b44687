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
from .chunks import See, form_for, has_form, in_chunks, tiles
from .errors import whole


class FeatureState(NamedTuple):
    """What one feature stream remembers: n numbers a feature, and how many steps it has seen."""

    x: Float[Tensor, "B n D"]
    position: int


def features_direct(u: Float[Tensor, "B L D"], bank: FilterBank, budget: int) -> Float[Tensor, "B L K D"]:
    """sum over tau <= t of phi_k(tau) u(t - tau), channel by channel as Toeplitz products in float64."""
    u = checked(u, bank).double()
    steps = u.shape[1]
    padded = F.pad(bank.taps(budget, u)[:, :steps], (steps - 1, 0))
    toeplitz = padded.unfold(1, steps, 1).flip(2)  # [k, t, s] = phi_k(t - s), 0 for s > t
    return torch.stack([matrix @ u for matrix in toeplitz], dim=2)


def features_fft(
    u: Float[Tensor, "B L D"], bank: FilterBank, budget: int, first: int = 0
) -> Float[Tensor, "B L K D"]:
    """One real FFT of length 2L, a product with the filters' transforms, and one inverse.

    Of `budget` channels after the `first` ones.
    """
    with full_precision(u):
        u = real(checked(u, bank))
        n = 2 * bank.length
        spectrum = torch.fft.rfft(u.transpose(1, 2), n=n)[:, :, None]  # (B, D, 1, L+1)
        product = torch.fft.irfft(spectrum * bank.transforms(first + budget, u)[first:], n=n)
        return product[..., : u.shape[1]].permute(0, 3, 2, 1)


def features_chunked(
    u: Float[Tensor, "B L D"], bank: FilterBank, budget: int, chunk: int | None = None
) -> Float[Tensor, "B L K D"]:
    """Toeplitz products within chunks of time; all that came before enters through the state."""
    with full_precision(u):
        u = real(checked(u, bank))
        steps = u.shape[1]
        tile = tiles(u.device).chunk
        form = bank.chunked(budget, chunk, u) if chunk else form_for(bank, budget, steps, tile, u)
        seen: Tensor = See.apply(in_chunks(u, form.inside.shape[0]), form)  # type: ignore[no-untyped-call]
        features = form.inside.flatten(0, 1) @ seen  # (N, T*K, D)
        return features.view(u.shape[0], -1, budget, u.shape[2])[:, -steps:]


def spectral_features(u: Float[Tensor, "B L D"], bank: FilterBank, budget: int) -> Float[Tensor, "B L K D"]:
    """By matrix products where that can be, else by FFT."""
    by_chunks = has_form(bank, budget, u.shape[1], tiles(u.device).chunk)
    return (features_chunked if by_chunks else features_fft)(u, bank, budget)


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
    return x[:, :budget].to(real(u).dtype), FeatureState(x, state.position + 1)


def full_precision(u: Tensor) -> AbstractContextManager[object]:
    """Autocast off, on devices that have it."""
    kind = u.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def checked(u: Tensor, bank: FilterBank) -> Tensor:
    """u, if it is not longer than the horizon."""
    whole("length of the input", u.shape[1], 1, bank.length)
    return u


def real(u: Tensor) -> Tensor:
    """u in float32, unless it has float64."""
    return u if u.dtype == torch.float64 else u.float()
