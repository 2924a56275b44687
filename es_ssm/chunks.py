"""Time in chunks: what a chunk of T steps can see is its own T inputs and a state that sums up all before.

`see` lays that out as one matrix a chunk, so that the features of the chunk are one product with
`ChunkedForm.inside`; `see_backward` is its adjoint. The state runs in float64 (see bank.py).
"""

from collections.abc import Callable
from functools import lru_cache
from math import log2
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64
from torch import Tensor

from .bank import ChunkedForm, FilterBank

ACCURATE = 1e-5  # of filters of norm 1: more, and the chunks are not used


def one_by_one(
    adds: Float64[Tensor, "B C n D"], advance: Float64[Tensor, "n n"]
) -> Float64[Tensor, "B C n D"]:
    """The states x_c = advance x_{c-1} + adds_c, with the least work: in place of `adds`."""
    matrix = advance.expand(len(adds), -1, -1)
    for c in range(1, adds.shape[1]):
        torch.baddbmm(adds[:, c], matrix, adds[:, c - 1], out=adds[:, c])
    return adds


def by_doubling(
    adds: Float64[Tensor, "B C n D"], advance: Float64[Tensor, "n n"]
) -> Float64[Tensor, "B C n D"]:
    """The same in log C steps: more work, fewer launches."""
    states, power, reach = adds, advance, 1
    while reach < states.shape[1]:
        later = states[:, reach:] + power @ states[:, :-reach]
        states, power, reach = torch.cat([states[:, :reach], later], 1), power @ power, 2 * reach
    return states


class Tiles(NamedTuple):
    """How the work is cut: steps in a chunk, tokens in a slab of the forward and of the backward pass,
    channels in a group of the latter; and how states follow one another.

    On a CPU a slab's gated features should stay in its cache, and longer chunks cost more than the shorter
    row of states saves; the backward pass adds to the gradient of all projections once a slab, so its slabs
    are longer. A GPU wants few and large launches. The width, the length and the budget make no difference
    worth a rule (docs/performance.md).
    """

    chunk: int
    slab: int
    backward_slab: int
    group: int
    scan: Callable[[Tensor, Tensor], Tensor]


CPU = Tiles(chunk=32, slab=256, backward_slab=1024, group=8, scan=one_by_one)
GPU = Tiles(chunk=128, slab=32768, backward_slab=32768, group=32, scan=by_doubling)


def tiles(device: torch.device) -> Tiles:
    return GPU if device.type == "cuda" else CPU


def has_form(bank: FilterBank, budget: int, steps: int, chunk: int) -> bool:
    """Whether chunks can do it: many channels over a short horizon have no accurate state space."""
    return _is_short(budget, steps, chunk) or is_accurate(bank, budget, chunk)


def form_for(bank: FilterBank, budget: int, steps: int, chunk: int, like: Tensor) -> ChunkedForm:
    """The form for an input of `steps`: one chunk where that costs no more than a state would."""
    if _is_short(budget, steps, chunk):
        return bank.single(budget, steps, like)
    return bank.chunked(budget, chunk, like)


def _is_short(budget: int, steps: int, chunk: int) -> bool:
    return steps <= chunk + budget  # the state has a few more than `budget` numbers


@lru_cache
def is_accurate(bank: FilterBank, budget: int, chunk: int) -> bool:
    """Whether the features of an impulse, made in chunks, are the filters. A state space that holds for one
    step at a time may not for powers of it."""
    if not bank.has_state_space(budget):
        return False
    impulse = torch.zeros(1, bank.length, 1, dtype=torch.float64, device="cpu")
    impulse[0, 0] = 1
    form = bank.chunked(budget, chunk, impulse)
    inputs = in_chunks(impulse, chunk)
    seen, _ = see(inputs, start(inputs, form), form)
    features = (form.inside.flatten(0, 1) @ seen).view(-1, budget)[-bank.length :]
    return bool((features - bank.taps(budget, impulse).T).norm(dim=0).max() < ACCURATE)


def feature_macs(bank: FilterBank, budget: int, steps: int) -> tuple[int, int]:
    """Multiply-accumulates for one feature's stream of `steps`, in a CPU's chunks: within, and between them.

    Where there is no form, what one real FFT of length 2L there and one a channel back amount to.
    """
    if has_form(bank, budget, steps, CPU.chunk):
        form = form_for(bank, budget, steps, CPU.chunk, torch.empty(0, device="cpu"))
        state, chunk = form.carry.shape
        chunks = -(-steps // chunk)
        return chunks * budget * chunk * (chunk + state), chunks * state * (chunk + state)
    transform = 2.5 * 2 * bank.length * log2(2 * bank.length) / 2  # a complex product is four real ones
    return round((1 + budget) * transform) + budget * 3 * (bank.length + 1), 0


def in_chunks(u: Float[Tensor, "B L D"], chunk: int) -> Float[Tensor, "B C T D"]:
    """With zeros in front where T does not divide L, which shift nothing: behind, the last chunk would start
    later than the state's coordinates allow for."""
    return F.pad(u, (0, 0, -u.shape[1] % chunk, 0)).unflatten(1, (-1, chunk))


def start(u: Float[Tensor, "B C T D"], form: ChunkedForm) -> Float64[Tensor, "B n D"]:
    """The state before the first chunk."""
    return u.new_zeros(u.shape[0], len(form.advance), u.shape[3], dtype=torch.float64)


def run(
    inputs: Float[Tensor, "B C T D"], state: Float64[Tensor, "B n D"], form: ChunkedForm
) -> Float64[Tensor, "B C+1 n D"]:
    """The states before each chunk and after the last, given the first."""
    adds = torch.cat([state[:, None], form.carry @ inputs.double()], 1)
    return tiles(inputs.device).scan(adds, form.advance)


def see(
    inputs: Float[Tensor, "B C T D"], state: Float64[Tensor, "B n D"], form: ChunkedForm
) -> tuple[Float[Tensor, "BC seen D"], Float64[Tensor, "B n D"]]:
    """For each chunk its inputs above the state before it; and the state after the last."""
    states = run(inputs, state, form)
    seen = torch.cat([inputs, states[:, :-1].to(inputs.dtype)], 2)
    return seen.flatten(0, 1), states[:, -1]


def see_backward(
    grad_seen: Float[Tensor, "BC seen D"], grad_state: Float64[Tensor, "B n D"], form: ChunkedForm
) -> tuple[Float[Tensor, "B C T D"], Float64[Tensor, "B n D"]]:
    """The gradients of inputs and state before, given those of what `see` returned."""
    batch, chunk = len(grad_state), form.carry.shape[1]
    grad_seen = grad_seen.unflatten(0, (batch, -1))
    # what each chunk saw of the state before it, and then all that comes back through that state
    saw = torch.cat([grad_seen[:, :, chunk:].double(), grad_state[:, None]], 1)
    states = tiles(saw.device).scan(saw.flip(1), form.advance.T).flip(1)
    grad_inputs = grad_seen[:, :, :chunk] + (form.carry.T @ states[:, 1:]).to(grad_seen.dtype)
    return grad_inputs, states[:, 0]


class See(torch.autograd.Function):
    """The two as one differentiable step, from the start."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, form: ChunkedForm) -> Tensor:
        ctx.form = form
        seen, state = see(inputs, start(inputs, form), form)
        ctx.zeros = torch.zeros_like(state)
        return seen

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return see_backward(grad, ctx.zeros, ctx.form)[0], None
