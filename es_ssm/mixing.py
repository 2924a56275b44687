"""Gate, features and projection in one: y(t) = sum over k of gate_k(t) M_k (Phi_k * u)(t).

`mix_plain` is the paper's path: features by FFT, gate, one contraction. `mix` has the same signature and the
same result, by matrix products over chunks of time (chunks.py), with three ideas more:

*   The gate scales the small matrix `inside` rather than the features that come out of it: T + n numbers a
    token and channel instead of D.
*   Gated features exist for a slab of tokens at a time, and the backward pass makes them again. What it
    keeps is u, the gates and the projections.
*   Where the projections are done in bfloat16, the features are too, without losing float32's digits: each
    operand is split in two bfloat16 numbers, 16 bits between them, and three products accumulate in
    float32. The one rounding is the cast to bfloat16 that the projection needs anyway.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .bank import FilterBank
from .chunks import feature_macs, form_for, has_form, seen_by_chunks, seen_by_chunks_backward
from .conv import checked, features_fft, full_precision, real

SLAB = 512  # tokens whose gated features exist at one time in the forward pass
BACKWARD_SLAB = 2048  # and in the backward pass, for GROUP channels at a time
GROUP = 8


def mix_plain(
    u: Float[Tensor, "B L D"],
    gates: Float[Tensor, "B L K"],
    projections: Float[Tensor, "Kbar D E"],
    bank: FilterBank,
    dtype: torch.dtype,
) -> Float[Tensor, "B L E"]:
    """Appendix C.2 and C.4: the features of all channels, gated, and one contraction in `dtype`."""
    budget = gates.shape[2]
    features = features_fft(u, bank, budget)
    gated = features * gates.to(features.dtype)[..., None]
    with full_precision(u):
        return torch.einsum("blkd,kde->ble", gated.to(dtype), projections[:budget].to(dtype))


def mix(
    u: Float[Tensor, "B L D"],
    gates: Float[Tensor, "B L K"],
    projections: Float[Tensor, "Kbar D E"],
    bank: FilterBank,
    dtype: torch.dtype,
) -> Float[Tensor, "B L E"]:
    """The first K channels, as many as there are gates; the products with M_k in `dtype`."""
    return _mix(u, gates, projections, bank.length, bank.method, dtype)


@torch.library.custom_op("es_ssm::mix", mutates_args=())
def _mix(
    u: Tensor, gates: Tensor, projections: Tensor, length: int, method: str, dtype: torch.dtype
) -> Tensor:
    """One operator for every compiler and tracer: its loops are not theirs to unroll."""
    return mix_forward(u, gates, projections, FilterBank(length, method), dtype)


@torch.library.custom_op("es_ssm::mix_backward", mutates_args=())
def _mix_backward(
    grad: Tensor, u: Tensor, gates: Tensor, projections: Tensor, length: int, method: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    return mix_backward(grad, u, gates, projections, FilterBank(length, method), dtype)


@_mix.register_fake
def _(
    u: Tensor, _gates: Tensor, projections: Tensor, _length: int, _method: str, dtype: torch.dtype
) -> Tensor:
    return u.new_empty(*u.shape[:2], projections.shape[2], dtype=dtype)


@_mix_backward.register_fake
def _(
    _grad: Tensor, u: Tensor, gates: Tensor, projections: Tensor, *_rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return u.new_empty(u.shape), gates.new_empty(gates.shape), projections.new_empty(projections.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[:3])
    ctx.rest = inputs[3:]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *_mix_backward(grad, *ctx.saved_tensors, *ctx.rest), None, None, None


_mix.register_autograd(_differentiate, setup_context=_keep)


Shape = tuple[int, ...]


@register_flop_formula(torch.ops.es_ssm.mix)
def _(u: Shape, gates: Shape, projections: Shape, length: int, method: str, *_: Any, **__: Any) -> int:
    """What torch's FLOP counter shall see: two for each multiply-accumulate, padding left out."""
    inside, state = feature_macs(FilterBank(length, method), gates[2], u[1])
    return round(2 * u[0] * u[2] * (inside + state + u[1] * gates[2] * projections[2]))


@register_flop_formula(torch.ops.es_ssm.mix_backward)
def _(
    _: Any, u: Shape, gates: Shape, projections: Shape, length: int, method: str, *__: Any, **___: Any
) -> int:
    """The features again and two products as large, the state there and back, two projections."""
    inside, state = feature_macs(FilterBank(length, method), gates[2], u[1])
    return round(2 * u[0] * u[2] * (3 * inside + 2 * state + 2 * u[1] * gates[2] * projections[2]))


def mix_forward(
    u: Tensor, gates: Tensor, projections: Tensor, bank: FilterBank, dtype: torch.dtype
) -> Tensor:
    """Slab by slab: scale `inside` by the gates, make the gated features, project them."""
    batch, steps, width = checked(u, bank).shape
    budget, out_width = gates.shape[2], projections.shape[2]
    if not has_form(bank, budget, steps):
        return mix_plain(u, gates, projections, bank, dtype)
    with full_precision(u):
        form = form_for(bank, budget, steps, real(u))
        chunk = form.inside.shape[0]
        seen, by_chunk = seen_by_chunks(real(u), form), _by_chunk(gates, chunk)
        matrix = projections[:budget].reshape(budget * width, out_width).to(dtype)
        out = torch.empty(len(seen) * chunk, out_width, dtype=dtype, device=u.device)
        for part in _slabs(len(seen), SLAB // chunk):
            rows = slice(part.start * chunk, part.stop * chunk)
            scaled = form.inside * by_chunk[part, ..., None]
            torch.mm(_gated_features(scaled, seen[part], dtype), matrix, out=out[rows])
        return out.view(batch, -1, out_width)[:, -steps:].contiguous()


def mix_backward(
    grad: Tensor, u: Tensor, gates: Tensor, projections: Tensor, bank: FilterBank, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of u, gates and projections; features are made again, a few channels at a time."""
    batch, steps, width = u.shape
    budget, out_width = gates.shape[2], projections.shape[2]
    if not has_form(bank, budget, steps):
        plain = partial(mix_plain, bank=bank, dtype=dtype)
        pull_back = torch.func.vjp(plain, u, gates, projections)[1]
        grad_u, grad_gates, grad_projections = (found.contiguous() for found in pull_back(grad))
        return grad_u, grad_gates, grad_projections
    with full_precision(u):
        form = form_for(bank, budget, steps, real(u))
        chunk = form.inside.shape[0]
        seen, by_chunk = seen_by_chunks(real(u), form), _by_chunk(gates, chunk)
        grad = F.pad(grad, (0, 0, -steps % chunk, 0)).reshape(-1, out_width)
        grad_seen = torch.zeros_like(seen)
        grad_gates = torch.empty_like(by_chunk)
        grad_projections = projections.new_zeros(projections.shape)
        for part in _slabs(len(seen), BACKWARD_SLAB // chunk):
            rows = grad[part.start * chunk : part.stop * chunk]
            low = seen[part].to(dtype)
            for channels in _slabs(budget, GROUP):
                inside = form.inside[:, channels]
                scaled = inside * by_chunk[part][:, :, channels, None]
                gated = _gated_features(scaled, seen[part], dtype)  # (tokens, group * D)
                grad_projections[channels] += (gated.T @ rows).view(-1, width, out_width)
                matrix = projections[channels].reshape(-1, out_width).to(dtype)
                back = (rows @ matrix.T).view(len(low), -1, width)  # (N, T * group, D)
                weights = (back @ low.mT).view_as(scaled)  # the gradient of `scaled`
                grad_gates[part][:, :, channels] = (weights * inside).sum(-1)
                grad_seen[part] += scaled.flatten(1, 2).to(dtype).mT @ back
        grad_u = seen_by_chunks_backward(grad_seen, form, batch, steps)
    gates_back = grad_gates.view(batch, -1, budget)[:, -steps:]
    return grad_u.to(u.dtype).contiguous(), gates_back.to(gates.dtype).contiguous(), grad_projections


def _gated_features(scaled: Tensor, seen: Tensor, dtype: torch.dtype) -> Tensor:
    """scaled (N, T, K, seen) times seen (N, seen, D), as (N * T, K * D) in `dtype`."""
    left = scaled.flatten(1, 2)
    if dtype == torch.bfloat16:
        high, low = _halves(left)
        seen_high, seen_low = _halves(seen)
        product = torch.cat([high, high, low], 2) @ torch.cat([seen_high, seen_low, seen_high], 1)
    else:
        product = (left @ seen).to(dtype)
    return product.view(scaled.shape[0] * scaled.shape[1], -1)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as a sum of two bfloat16 numbers, to 16 bits."""
    high = x.bfloat16()
    return high, (x - high).bfloat16()


def _by_chunk(gates: Tensor, chunk: int) -> Tensor:
    """(B, L, K) to (N, T, K), zeros in front as for the inputs."""
    return F.pad(real(gates), (0, 0, -gates.shape[1] % chunk, 0)).view(-1, chunk, gates.shape[2])


def _slabs(count: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
