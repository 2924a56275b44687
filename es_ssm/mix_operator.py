"""Mixing as one operator of torch's: for every compiler, tracer and counter its loops are its own affair.

Registered by the low-level library calls: `torch.library.custom_op` would import the whole compiler, a
second or more, on the first call of a program that compiles nothing.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.utils.flop_counter import register_flop_formula

from .bank import FilterBank
from .chunks import feature_macs
from .mixing import mix_backward, mix_forward

INSTEAD = "es_ssm.mixing.mix_plain has the same arguments and every derivative"
Shape = tuple[int, ...]

_library = torch.library.Library("es_ssm", "DEF")
_library.define(
    "mix(Tensor u, Tensor gates, Tensor projections, int length, str method, ScalarType dtype) -> Tensor"
)
_library.define(
    "mix_backward(Tensor grad, Tensor u, Tensor gates, Tensor projections, int length, str method, "
    "ScalarType dtype) -> (Tensor, Tensor, Tensor)"
)


def mix(
    u: Float[Tensor, "B L D"],
    gates: Float[Tensor, "B L K"],
    projections: Float[Tensor, "E Kbar D"],
    bank: FilterBank,
    dtype: torch.dtype,
) -> Float[Tensor, "B L E"]:
    """The first K channels, as many as there are gates; the products with M_k in `dtype`."""
    fits = gates.shape[:2] == u.shape[:2] and projections.shape[2] == u.shape[2]
    if not fits or gates.shape[2] > projections.shape[1]:
        raise ValueError(
            f"gates (B, L, K) and projections (E, K or more, D) must fit u (B, L, D), got shapes "
            f"{tuple(gates.shape)}, {tuple(projections.shape)} and {tuple(u.shape)}"
        )
    if not torch.compiler.is_compiling() and any(
        unpack_dual(x).tangent is not None for x in (u, gates, projections)
    ):
        raise NotImplementedError(f"the spectral layer has no forward-mode derivative: {INSTEAD}")
    out: Tensor = torch.ops.es_ssm.mix(u, gates, projections, bank.length, bank.method, dtype)
    return out


def _forward(
    u: Tensor, gates: Tensor, projections: Tensor, length: int, method: str, dtype: torch.dtype
) -> Tensor:
    return mix_forward(u, gates, projections, FilterBank(length, method), dtype)


def _backward(
    grad: Tensor, u: Tensor, gates: Tensor, projections: Tensor, length: int, method: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    return mix_backward(grad, u, gates, projections, FilterBank(length, method), dtype)


def _no_second(ctx: Any, *_: Any) -> None:
    raise NotImplementedError(f"the spectral layer has no second derivative: {INSTEAD}")


def _shape(u: Tensor, _gates: Tensor, projections: Tensor, _length: int, _method: str, dtype: Any) -> Tensor:
    return u.new_empty(*u.shape[:2], len(projections), dtype=dtype)


def _shapes(_grad: Tensor, u: Tensor, gates: Tensor, projections: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return u.new_empty(u.shape), gates.new_empty(gates.shape), projections.new_empty(projections.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[:3])
    ctx.rest = inputs[3:]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *torch.ops.es_ssm.mix_backward(grad, *ctx.saved_tensors, *ctx.rest), None, None, None


for _name, _run, _outline in (("mix", _forward, _shape), ("mix_backward", _backward, _shapes)):
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"es_ssm::{_name}", _outline, lib=_library)
torch.library.register_autograd("es_ssm::mix", _differentiate, setup_context=_keep, lib=_library)
torch.library.register_autograd("es_ssm::mix_backward", _no_second, lib=_library)


@register_flop_formula(torch.ops.es_ssm.mix)
def _(u: Shape, gates: Shape, projections: Shape, length: int, method: str, *_: Any, **__: Any) -> int:
    """What torch's FLOP counter shall see: two for each multiply-accumulate, padding left out."""
    inside, state = feature_macs(FilterBank(length, method), gates[2], u[1])
    return 2 * u[0] * u[2] * (inside + state + u[1] * gates[2] * projections[0])


@register_flop_formula(torch.ops.es_ssm.mix_backward)
def _(
    _: Any, u: Shape, gates: Shape, projections: Shape, length: int, method: str, *__: Any, **___: Any
) -> int:
    """The features again and two products as large; the state there and back; two projections."""
    inside, state = feature_macs(FilterBank(length, method), gates[2], u[1])
    return 2 * u[0] * u[2] * (3 * inside + 2 * state + 2 * u[1] * gates[2] * projections[0])
