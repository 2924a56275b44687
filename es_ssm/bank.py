"""The filter bank as tensors: taps, Fourier transforms, and chunked matrix products.

A `FilterBank` is a name (horizon and construction method), not data. Each form is computed in float64 when
it is first asked for, once for a process, device and dtype, so every layer and every model of one horizon
shares it and no checkpoint stores it. A form depends on the budget asked for and on nothing else: a full
model at budget K and its export of K channels compute with the very same numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Complex, Float
from torch import Tensor

from .errors import choice, whole
from .filters import FILTER_METHODS, MAX_FILTERS, MAX_LENGTH, FilterMethod, hankel_filters
from .realization import Realization, impulse_response, realize

NEGLIGIBLE = 1e-8  # coordinates of the state that move no feature by more than this are left out
FORMS_KEPT = 256  # in memory, the least recently used dropped; a form of the chunked path is about 1 MB


class ChunkedForm(NamedTuple):
    """The filters over chunks of T steps with a state of n numbers a feature between chunks.

    `inside` maps [the chunk's T inputs; the state before it] to the chunk's features, `carry` and `advance`
    give the state after it: advance @ state + carry @ inputs. These two are float64, and so is the state.
    """

    inside: Float[Tensor, "T K seen"]
    carry: Float[Tensor, "n T"]
    advance: Float[Tensor, "n n"]


class StepForm(NamedTuple):
    """One step of time: x <- a x + b u, features = the first K rows of x. All of it in float64."""

    a: Float[Tensor, "n n"]
    b: Float[Tensor, " n"]


@dataclass(frozen=True)
class FilterBank:
    """The spectral channels of horizon `length`; the forms below give the first `budget` of them."""

    length: int
    method: str = "exact"  # a FilterMethod

    def __post_init__(self) -> None:
        whole("length", self.length, 1, MAX_LENGTH)
        choice("method", self.method, FILTER_METHODS)

    @property
    def n_filters(self) -> int:
        """The most channels there are."""
        return min(self.length, MAX_FILTERS)

    def taps(self, budget: int, like: Tensor) -> Float[Tensor, "K L"]:
        """The filters themselves."""
        return _form(_taps, self, budget, 0, like.device, like.dtype)[0]

    def transforms(self, budget: int, like: Tensor) -> Complex[Tensor, "K F"]:
        """Their real Fourier transforms of length 2L, as the paper's path uses them."""
        return _form(_transforms, self, budget, 0, like.device, like.dtype)[0]

    def chunked(self, budget: int, chunk: int, like: Tensor) -> ChunkedForm:
        """Their matrices for chunks of `chunk` steps."""
        if chunk >= self.length:  # there is never a second chunk
            return self.single(budget, chunk, like)
        inside = _form(_chunked, self, budget, chunk, like.device, like.dtype)[0]
        _, carry, advance = _form(_chunked, self, budget, chunk, like.device, torch.float64)
        return ChunkedForm(inside, carry, advance)

    def single(self, budget: int, steps: int, like: Tensor) -> ChunkedForm:
        """Their matrices for an input that is one chunk: no state, and none needed."""
        inside = _form(_single, self, budget, steps, like.device, like.dtype)[0]
        empty = inside.new_empty(0, dtype=torch.float64)
        return ChunkedForm(inside, empty.view(0, steps), empty.view(0, 0))

    def step(self, budget: int, like: Tensor) -> StepForm:
        """Their matrices for one step of time."""
        return StepForm(*_form(_step, self, budget, 0, like.device, torch.float64))

    def realization(self, budget: int) -> Realization:
        """Their state space, in float64. Refused where none is accurate: many channels, short horizon."""
        found = _realization(self, budget)
        if isinstance(found, ValueError):
            raise found
        return found

    def has_state_space(self, budget: int) -> bool:
        """Whether the chunked and the step form exist."""
        return isinstance(_realization(self, budget), Realization)


Maker = Callable[[FilterBank, int, int], tuple[np.ndarray, ...]]


@lru_cache(maxsize=FORMS_KEPT)
def _form(
    make: Maker, bank: FilterBank, budget: int, chunk: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """The arrays of `make` as tensors; complex ones in the complex type of `dtype`."""
    tensors = []
    with torch.inference_mode(False):  # a tensor made in inference mode could never serve training
        for array in make(bank, budget, chunk):
            kind = dtype.to_complex() if np.iscomplexobj(array) else dtype
            tensors.append(torch.from_numpy(np.ascontiguousarray(array)).to(device, kind))
    return tuple(tensors)


@lru_cache(maxsize=FORMS_KEPT)
def _realization(bank: FilterBank, budget: int) -> Realization | ValueError:
    try:
        return realize(_filters(bank, budget))
    except ValueError as refusal:
        return refusal


def _filters(bank: FilterBank, budget: int) -> np.ndarray:
    """Always cut from the whole bank, so that channel k is the same array whatever the budget."""
    budget = whole("budget", budget, 1, bank.n_filters)
    return _whole_bank(bank)[:budget]


@lru_cache(maxsize=8)
def _whole_bank(bank: FilterBank) -> np.ndarray:
    return hankel_filters(bank.length, bank.n_filters, cast(FilterMethod, bank.method)).filters


def _taps(bank: FilterBank, budget: int, _: int) -> tuple[np.ndarray, ...]:
    return (_filters(bank, budget),)


def _transforms(bank: FilterBank, budget: int, _: int) -> tuple[np.ndarray, ...]:
    return (np.fft.rfft(_filters(bank, budget), n=2 * bank.length),)


def _step(bank: FilterBank, budget: int, _: int) -> tuple[np.ndarray, ...]:
    system = bank.realization(budget)
    return system.A, system.B


def _single(bank: FilterBank, budget: int, steps: int) -> tuple[np.ndarray, ...]:
    """Toeplitz[i, k, j] = phi_k(i - j): what input j does to output i."""
    filters = _filters(bank, budget)
    lag = np.arange(steps)[:, None] - np.arange(steps)
    taps = np.pad(filters, ((0, 0), (0, max(0, steps - bank.length))))
    return (np.where(lag >= 0, taps[:, np.abs(lag)], 0.0).transpose(1, 0, 2),)


def _chunked(bank: FilterBank, budget: int, chunk: int) -> tuple[np.ndarray, ...]:
    """See `ChunkedForm`. The state is put in coordinates whose responses over the lags that a chunk can
    find in it (0 to L - T) are orthonormal: every entry of `inside` is then at most 1, and rounding the state
    to float32 costs nothing. In other coordinates it can cost 1e5 times as much: the channels are nearly
    dependent over part of their horizon. What `advance` amplifies instead, float64 absorbs."""
    system = bank.realization(budget)
    from_state = np.empty((chunk, budget, len(system.B)))  # C A^(i+1)
    row = system.C
    for i in range(chunk):
        row = row @ system.A
        from_state[i] = row
    response = impulse_response(system.A, system.B, bank.length - chunk)
    basis, sizes, _ = np.linalg.svd(response, full_matrices=False)
    seen = np.abs(from_state @ (basis * sizes)).max(axis=(0, 1)) > NEGLIGIBLE
    out, back = basis[:, seen] * sizes[seen], (basis[:, seen] / sizes[seen]).T
    carry = impulse_response(system.A, system.B, chunk)[:, ::-1]
    (toeplitz,) = _single(bank, budget, chunk)
    inside = np.concatenate([toeplitz, from_state @ out], axis=2)
    return inside, back @ carry, back @ np.linalg.matrix_power(system.A, chunk) @ out
