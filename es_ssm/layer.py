"""The spectral layer: S_K(u)(t) = sum over k <= K of sigmoid(s_k(t))/sqrt(K) M_k (Phi_k * u)(t)."""

from math import sqrt

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from .bank import FilterBank
from .errors import whole
from .memory import Memory
from .mix_operator import mix

PROJECTION_STD = 1e-3


class SpectralLayer(nn.Module):
    """Mixes tokens through the first `budget` of `n_filters` fixed filters, gated token by token."""

    def __init__(self, d_model: int, n_filters: int, bank: FilterBank, gate: nn.Module) -> None:
        super().__init__()
        self.n_filters = whole("n_filters", n_filters, 1, bank.n_filters)
        self.bank = bank
        self.gate = gate
        self.projections = nn.Parameter(torch.empty(d_model, n_filters, d_model))  # [:, k] is M_k
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.projections, std=PROJECTION_STD)

    def forward(
        self, u: Float[Tensor, "B L D"], budget: int | None = None, mask: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """Where `mask` is false a token is as good as absent: nothing of it reaches another."""
        budget = whole("budget", self.n_filters if budget is None else budget, 1, self.n_filters)
        u = masked(u, mask)
        gates = self.gate(u, budget) / sqrt(budget)
        return mix(u, gates, self.projections, self.bank, working_dtype(self.projections))

    def step(self, u: Float[Tensor, "B m D"], memory: Memory) -> Float[Tensor, "B m D"]:
        """The next m tokens of streams that `memory` remembers."""
        gates = self.gate(u, memory.budget) / sqrt(memory.budget)
        dtype = working_dtype(self.projections)
        matrix = self.projections[:, : memory.budget].to(dtype).flatten(1)  # (E, K D)
        parts, first = [], 0
        while first < u.shape[1]:
            part = slice(first, first + memory.room)
            parts.append(F.linear(memory.step(u[:, part], gates[:, part]).to(dtype), matrix))
            first = part.stop
        return torch.cat(parts, 1)


def masked(u: Float[Tensor, "B L D"], mask: Bool[Tensor, "B L"] | None) -> Float[Tensor, "B L D"]:
    """Zeros where `mask` is false: nothing of such a token reaches another."""
    return u if mask is None else u.masked_fill(~mask[..., None], 0)


def working_dtype(parameter: Tensor) -> torch.dtype:
    """What autocast asks for, or else the parameter's own."""
    kind = parameter.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return parameter.dtype
