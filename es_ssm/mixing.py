"""Gate, features and projection in one: y(t) = sum over k of gate_k(t) M_k (Phi_k * u)(t).

`mix_plain` is the paper's path: features by FFT, gate, one contraction. `mix_forward` has the same signature
and the same result, by matrix products over chunks of time (chunks.py), with three ideas more:

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

import torch
from jaxtyping import Float
from torch import Tensor

from .bank import ChunkedForm, FilterBank
from .chunks import form_for, has_form, in_chunks, run, see, see_backward, start, tiles
from .conv import checked, features_fft, full_precision, real


def mix_plain(
    u: Float[Tensor, "B L D"],
    gates: Float[Tensor, "B L K"],
    projections: Float[Tensor, "E Kbar D"],
    bank: FilterBank,
    dtype: torch.dtype,
    first: int = 0,
) -> Float[Tensor, "B L E"]:
    """Appendix C.2 and C.4: the features of all channels, gated, and one contraction in `dtype`.

    Gates and projections may be those of channels after the `first` ones.
    """
    budget = gates.shape[2]
    features = features_fft(u, bank, budget, first)
    gated = features * gates.to(features.dtype)[..., None]
    with full_precision(u):
        matrices = projections[:, :budget].to(dtype).contiguous()
        return torch.einsum("blkd,ekd->ble", gated.to(dtype), matrices)


def mix_forward(
    u: Tensor, gates: Tensor, projections: Tensor, bank: FilterBank, dtype: torch.dtype
) -> Tensor:
    """Slab by slab: scale `inside` by the gates, make the gated features, project them."""
    steps = checked(u, bank).shape[1]
    budget, out_width = gates.shape[2], len(projections)
    tile = tiles(u.device)
    if not has_form(bank, budget, steps, tile.chunk):
        out = u.new_zeros(*u.shape[:2], out_width, dtype=real(u).dtype)
        for part in _parts(budget, tile.group):
            out += mix_plain(u, gates[:, :, part], projections[:, part], bank, dtype, part.start)
        return out.to(dtype)
    with full_precision(u):
        form = form_for(bank, budget, steps, tile.chunk, real(u))
        chunk = form.inside.shape[0]
        inputs, gates = in_chunks(real(u), chunk), in_chunks(real(gates), chunk)
        # a copy of fewer than all channels: what a product rounds to may depend on how its operands lie
        matrix = projections[:, :budget].to(dtype).contiguous().flatten(1)  # (E, K D)
        out = u.new_empty(*inputs.shape[:3], out_width, dtype=dtype)
        room = _room(inputs, tile.slab, budget, dtype)
        for sequences, parts in _slabs(inputs, tile.slab):
            state = start(inputs[sequences], form)
            for part in parts:
                seen, state = see(inputs[sequences, part], state, form)
                scaled = form.inside * gates[sequences, part].flatten(0, 1)[..., None]
                rows = out[sequences, part].view(-1, out_width)
                torch.mm(_gated_features(scaled, seen, room), matrix.T, out=rows)
        return out.flatten(1, 2)[:, -steps:].contiguous()


def mix_backward(
    grad: Tensor, u: Tensor, gates: Tensor, projections: Tensor, bank: FilterBank, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of u, gates and projections; features are made again, a few channels at a time."""
    budget, steps = gates.shape[2], u.shape[1]
    tile = tiles(u.device)
    if not has_form(bank, budget, steps, tile.chunk):
        return _plain_backward(grad, u, gates, projections, bank, dtype, tile.group)
    with full_precision(u):
        form = form_for(bank, budget, steps, tile.chunk, real(u))
        chunk = form.inside.shape[0]
        inputs, by_chunk, grad = (in_chunks(x, chunk) for x in (real(u), real(gates), grad))
        grads = torch.empty_like(inputs), torch.empty_like(by_chunk), torch.zeros_like(real(projections))
        rooms = [_room(inputs, tile.backward_slab, min(tile.group, budget), dtype) for _ in range(2)]
        for sequences, parts in _slabs(inputs, tile.backward_slab):
            states = [start(inputs[sequences], form)]
            for part in parts[:-1]:
                states.append(run(inputs[sequences, part], states[-1], form)[:, -1])
            grad_state = torch.zeros_like(states[0])
            for part, state in zip(reversed(parts), reversed(states), strict=True):
                at = sequences, part
                seen, _ = see(inputs[at], state, form)
                given = by_chunk[at].flatten(0, 1), grad[at].flatten(0, 2)
                grad_seen, grad_gates = _slab_backward(
                    seen, *given, projections, grads[2], form, tile.group, *rooms
                )
                grads[0][at], grad_state = see_backward(grad_seen, grad_state, form)
                grads[1][at] = grad_gates.view_as(by_chunk[at])
    grad_u, grad_gates = (found.flatten(1, 2)[:, -steps:].contiguous() for found in grads[:2])
    return grad_u.to(u.dtype), grad_gates.to(gates.dtype), grads[2].to(projections.dtype)


def _plain_backward(
    grad: Tensor,
    u: Tensor,
    gates: Tensor,
    projections: Tensor,
    bank: FilterBank,
    dtype: torch.dtype,
    group: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `mix_plain`, some channels at a time."""
    grads = torch.zeros_like(real(u)), torch.empty_like(gates), torch.zeros_like(projections)
    for part in _parts(gates.shape[2], group):
        plain = partial(mix_plain, bank=bank, dtype=dtype, first=part.start)
        pull_back = torch.func.vjp(plain, u, gates[:, :, part], projections[:, part])[1]
        grad_u, grads[1][:, :, part], grads[2][:, part] = pull_back(grad)
        grads[0].add_(grad_u)
    return grads[0].to(u.dtype), grads[1], grads[2]


def _slab_backward(
    seen: Float[Tensor, "N seen D"],
    gates: Float[Tensor, "N T K"],
    rows: Float[Tensor, "NT E"],
    projections: Float[Tensor, "E Kbar D"],
    grad_projections: Float[Tensor, "E Kbar D"],
    form: ChunkedForm,
    group: int,
    room: Float[Tensor, " numbers"],
    more_room: Float[Tensor, " numbers"],
) -> tuple[Float[Tensor, "N seen D"], Float[Tensor, "N T K"]]:
    """The gradients of `seen` and gates, given that of the output in `rows`; adds to that of projections."""
    out_width, _, width = projections.shape
    grad_seen, grad_gates, low = torch.zeros_like(seen), torch.empty_like(gates), seen.to(room.dtype)
    for channels in _parts(gates.shape[2], group):
        inside = form.inside[:, channels]
        scaled = inside * gates[:, :, channels, None]
        gated = _gated_features(scaled, seen, room)  # (N T, group D)
        grad_projections[:, channels] += (rows.T @ gated).view(out_width, -1, width)
        matrix = projections[:, channels].to(room.dtype).flatten(1)  # (E, group D)
        back = more_room[: gated.numel()].view_as(gated)  # the gradient of `gated`
        torch.mm(rows, matrix, out=back)
        back = back.view(len(low), -1, width)  # (N, T group, D)
        grad_gates[:, :, channels] = ((back @ low.mT).view_as(scaled) * inside).sum(-1)
        grad_seen += scaled.flatten(1, 2).to(room.dtype).mT @ back
    return grad_seen, grad_gates


def _gated_features(
    scaled: Float[Tensor, "N T K seen"], seen: Float[Tensor, "N seen D"], room: Float[Tensor, " numbers"]
) -> Float[Tensor, "NT KD"]:
    """scaled times seen, in the type of `room` and in the memory of it."""
    chunks, chunk, budget, _ = scaled.shape
    out = room[: chunks * chunk * budget * seen.shape[2]].view(chunks, chunk * budget, -1)
    left = scaled.flatten(1, 2)
    if room.dtype == torch.bfloat16:
        high, low = _halves(left)
        seen_high, seen_low = _halves(seen)
        torch.bmm(torch.cat([high, high, low], 2), torch.cat([seen_high, seen_low, seen_high], 1), out=out)
    elif room.dtype == seen.dtype:
        torch.bmm(left, seen, out=out)
    else:
        out.copy_(left @ seen)
    return out.view(chunks * chunk, -1)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as a sum of two bfloat16 numbers, to 16 bits."""
    high = x.bfloat16()
    return high, (x - high).bfloat16()


def _slabs(inputs: Float[Tensor, "B C T D"], size: int) -> Iterator[tuple[slice, list[slice]]]:
    """Some sequences at a time, and chunks of them in order: as near to `size` tokens as may be."""
    batch, count, chunk = inputs.shape[:3]
    chunks = max(1, min(count, size // chunk))
    sequences = max(1, size // (chunk * chunks)) if chunks == count else 1
    for sequence in _parts(batch, sequences):
        yield sequence, _parts(count, chunks)


def _room(inputs: Float[Tensor, "B C T D"], size: int, budget: int, dtype: torch.dtype) -> Tensor:
    """Memory for the gated features of the largest slab: used again and again, it is mapped in once."""
    batch, count, chunk, width = inputs.shape
    tokens = min(max(size, chunk), batch * count * chunk)
    return inputs.new_empty(tokens * budget * width, dtype=dtype)


def _parts(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
