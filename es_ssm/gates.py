"""Gates: how much of each spectral channel every token takes, before the common factor 1/sqrt(K).

Three modules with one signature, gate(u, budget) -> (B, L, K): the paper's, and the two degenerate ones of
its ablation (appendix H.3). Channel k's gate never depends on another channel's parameters.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

CLOSED = -2.0  # initial logit: sigmoid(-2) = 0.12, so the spectral branch starts nearly shut


class AdaptiveGate(nn.Module):
    """sigmoid(W2 GELU(W1 u(t) + b1) + b2), hidden width d/2: the paper's gate."""

    def __init__(self, d_model: int, n_filters: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(d_model, d_model // 2)
        self.logits = nn.Linear(d_model // 2, n_filters)
        nn.init.constant_(self.logits.bias, CLOSED)

    def forward(self, u: Float[Tensor, "B L D"], budget: int) -> Float[Tensor, "B L K"]:
        hidden = F.gelu(self.hidden(u))
        return F.linear(hidden, self.logits.weight[:budget], self.logits.bias[:budget]).sigmoid()


class ChannelGate(nn.Module):
    """sigmoid(s_k): one trainable number a channel, the same for every input."""

    def __init__(self, d_model: int, n_filters: int) -> None:  # noqa: ARG002  one signature for all gates
        super().__init__()
        self.logits = nn.Parameter(torch.full((n_filters,), CLOSED))

    def forward(self, u: Float[Tensor, "B L D"], budget: int) -> Float[Tensor, "B L K"]:
        return self.logits[:budget].sigmoid().expand(*u.shape[:2], budget)


class UniformGate(nn.Module):
    """1: every channel counts the same."""

    def __init__(self, d_model: int, n_filters: int) -> None:  # noqa: ARG002
        super().__init__()

    def forward(self, u: Float[Tensor, "B L D"], budget: int) -> Float[Tensor, "B L K"]:
        return u.new_ones(()).expand(*u.shape[:2], budget)


GATES: dict[str, type[nn.Module]] = {
    "adaptive": AdaptiveGate,
    "channel": ChannelGate,
    "uniform": UniformGate,
}
