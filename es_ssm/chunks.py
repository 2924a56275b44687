"""Time in chunks: what a chunk of T steps can see is its own T inputs and a state that sums up all before.

`seen_by_chunks` lays that out as one matrix a chunk, so that the features of the chunk are one product with
`ChunkedForm.inside`; `seen_by_chunks_backward` is its adjoint. The state runs in float64 (see bank.py): a few
percent of the work.
"""

from functools import lru_cache
from math import log2
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .bank import ChunkedForm, FilterBank

CHUNK = 32
ACCURATE = 1e-5  # of filters of norm 1: more, and the chunks are not used


def has_form(bank: FilterBank, budget: int, steps: int) -> bool:
    """Whether chunks can do it: many channels over a short horizon have no accurate state space."""
    return _is_short(budget, steps) or _is_accurate(bank, budget)


def form_for(bank: FilterBank, budget: int, steps: int, like: Tensor) -> ChunkedForm:
    """The form for an input of `steps`: one chunk where that costs no more than a state would."""
    return bank.single(budget, steps, like) if _is_short(budget, steps) else bank.chunked(budget, CHUNK, like)


def _is_short(budget: int, steps: int) -> bool:
    return steps <= CHUNK + budget  # the state has a few more than `budget` numbers


@lru_cache
def _is_accurate(bank: FilterBank, budget: int) -> bool:
    """Whether the features of an impulse, made in chunks, are the filters. A state space that holds for one
    step at a time may not for powers of it."""
    if not bank.has_state_space(budget):
        return False
    impulse = torch.zeros(1, bank.length, 1, dtype=torch.float64)
    impulse[0, 0] = 1
    form = bank.chunked(budget, CHUNK, impulse)
    offset = -bank.length % form.inside.shape[0]
    features = (form.inside @ seen_by_chunks(impulse, form)[:, None]).flatten(0, 1)[offset:, :, 0]
    return bool((features - bank.taps(budget, impulse).T).norm(dim=0).max() < ACCURATE)


def feature_macs(bank: FilterBank, budget: int, steps: int) -> tuple[int, int]:
    """Multiply-accumulates for one feature's stream of `steps`: within chunks, and for the state between.

    Where there is no form, what one real FFT of length 2L there and one a channel back amount to.
    """
    if has_form(bank, budget, steps):
        form = form_for(bank, budget, steps, torch.empty(0))
        state, chunk = form.carry.shape
        chunks = -(-steps // chunk)
        return chunks * budget * chunk * (chunk + state), chunks * state * chunk + (chunks - 1) * state**2
    transform = 2.5 * 2 * bank.length * log2(2 * bank.length) / 2  # a complex product is four real ones
    return round((1 + budget) * transform) + budget * 3 * (bank.length + 1), 0


def seen_by_chunks(u: Float[Tensor, "B L D"], form: ChunkedForm) -> Float[Tensor, "N seen D"]:
    """For each of the N = B C chunks, its inputs above the state before it.

    Where T does not divide L there are zeros in front, which shift nothing: behind, the last chunk would
    start later than the state's coordinates allow for.
    """
    batch, steps, width = u.shape
    size, chunk = form.carry.shape
    inputs = F.pad(u, (0, 0, -steps % chunk, 0)).view(batch, -1, chunk, width)
    count = inputs.shape[1]
    if size == 0:
        return inputs.flatten(0, 1)
    states = form.carry @ inputs.double()  # (B, C, n, D); what each chunk adds, then the state after it
    advance = form.advance.expand(batch, size, size)
    for c in range(1, count):
        torch.baddbmm(states[:, c], advance, states[:, c - 1], out=states[:, c])
    before = F.pad(states[:, :-1], (0, 0, 0, 0, 1, 0))
    return torch.cat([inputs, before.to(u.dtype)], dim=2).flatten(0, 1)


def seen_by_chunks_backward(
    grad: Float[Tensor, "N seen D"], form: ChunkedForm, batch: int, steps: int
) -> Float[Tensor, "B L D"]:
    """The gradient of u, given that of what `seen_by_chunks` returned."""
    size, chunk = form.carry.shape
    grad = grad.unflatten(0, (batch, -1))
    found = grad[:, :, :chunk]
    if size:
        # what comes back through the state after chunk c: all that later chunks saw of it
        back = F.pad(grad[:, 1:, chunk:].double(), (0, 0, 0, 0, 0, 1))
        advance = form.advance.T.expand(batch, size, size)
        for c in range(back.shape[1] - 2, -1, -1):
            torch.baddbmm(back[:, c], advance, back[:, c + 1], out=back[:, c])
        found = found + (form.carry.T @ back).to(grad.dtype)
    return found.flatten(1, 2)[:, -steps:]


class SeenByChunks(torch.autograd.Function):
    """The two as one differentiable step."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, form: ChunkedForm) -> Tensor:
        ctx.form, ctx.batch, ctx.steps = form, u.shape[0], u.shape[1]
        return seen_by_chunks(u, form)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return seen_by_chunks_backward(grad, ctx.form, ctx.batch, ctx.steps), None
