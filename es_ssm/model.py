"""The elastic backbone: pre-norm blocks of a spectral layer and an FFN, at any budget up to its own.

`ModelConfig` says everything about a model but its task, which is the head's (heads.py).
"""

from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from pydantic import Field, field_validator
from torch import Tensor, nn

from .bank import FilterBank
from .config import Config
from .errors import choice, shown, whole
from .filters import FILTER_METHODS, MAX_FILTERS, MAX_LENGTH
from .gates import GATES
from .layer import SpectralLayer, masked
from .memory import Memory

Budget = int | tuple[int, ...]  # the same for every layer, or one for each
PAPER_BUDGETS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
FFN_FACTOR = 4
EMBEDDING_STD = 0.02
MAX_WIDTH, MAX_LAYERS, MAX_ROWS = 65_536, 1_024, 2**24  # beyond any use, and soon refused in a bad file


class ModelConfig(Config):
    """An ES-SSM: `n_layers` blocks of width `d_model` over `n_filters` channels of horizon `max_length`.

    `n_filters` may differ from layer to layer, as it does after a truncation by layer. `budgets` are what
    the model is trained and evaluated at, full budget last; by default the paper's ten as far as they fit.
    A model takes tokens below `vocab_size`, or vectors of `input_dim` numbers where that is set. The last
    five fields belong to one head each.
    """

    d_model: int
    n_layers: int
    max_length: int
    n_filters: Budget
    budgets: tuple[int, ...] = Field(default=None, validate_default=True)
    vocab_size: int = 258
    gate: Literal["adaptive", "channel", "uniform"] = "adaptive"
    filter_method: Literal["exact", "subspace-float64", "subspace-float32"] = "exact"
    dropout: float = Field(default=0.1, ge=0, lt=1)
    drop_path: float = Field(default=0.1, ge=0, lt=1)
    input_dim: int | None = None
    n_classes: int | None = None
    state_dim: int | None = None
    action_dim: int | None = None
    episode_length: int = 1000

    @field_validator("d_model", mode="before")
    @classmethod
    def _width(cls, value: object) -> int:
        return whole("d_model", value, 2, MAX_WIDTH)

    @field_validator("n_layers", mode="before")
    @classmethod
    def _depth(cls, value: object) -> int:
        return whole("n_layers", value, 1, MAX_LAYERS)

    @field_validator("max_length", mode="before")
    @classmethod
    def _horizon(cls, value: object) -> int:
        return whole("max_length", value, 1, MAX_LENGTH)

    @field_validator("vocab_size", "episode_length", mode="before")
    @classmethod
    def _size(cls, value: object, info: Any) -> int:
        return whole(info.field_name, value, 1, MAX_ROWS)

    @field_validator("input_dim", "n_classes", "state_dim", "action_dim", mode="before")
    @classmethod
    def _optional_size(cls, value: object, info: Any) -> int | None:
        return None if value is None else whole(info.field_name, value, 1, MAX_ROWS)

    @field_validator("gate", mode="before")
    @classmethod
    def _gate(cls, value: object) -> str:
        return choice("gate", value, GATES)

    @field_validator("filter_method", mode="before")
    @classmethod
    def _filter_method(cls, value: object) -> str:
        return choice("filter_method", value, FILTER_METHODS)

    @field_validator("n_filters", mode="before")
    @classmethod
    def _filters(cls, value: object, info: Any) -> object:
        """One number where all layers have the same."""
        if not {"n_layers", "max_length"} <= info.data.keys():
            return value  # one of those is refused already
        most = min(info.data["max_length"], MAX_FILTERS)
        filters = _one_a_layer("n_filters", value, [most] * info.data["n_layers"])
        return filters[0] if len(set(filters)) == 1 else filters

    @field_validator("budgets", mode="before")
    @classmethod
    def _budgets(cls, value: object, info: Any) -> object:
        if "n_filters" not in info.data:
            return value
        filters = info.data["n_filters"]
        smallest = min(filters) if isinstance(filters, tuple) else filters
        if value is None:
            return (*(b for b in PAPER_BUDGETS if b < smallest), smallest)
        if not isinstance(value, (list, tuple)) or not value:
            raise ValueError(f"budgets must be a list of whole numbers, got {shown(value)}")
        budgets = tuple(whole("each of budgets", b, 1, smallest) for b in value)
        if list(budgets) != sorted(set(budgets)):
            raise ValueError(f"budgets must ascend without repeats, got {budgets!r}")
        if isinstance(filters, int) and budgets[-1] != smallest:
            raise ValueError(f"budgets must end with the full budget {smallest} (n_filters), got {budgets!r}")
        return budgets

    @property
    def all_budgets(self) -> tuple[Budget, ...]:
        """What the model is meant to run at: `budgets`, then the full one where layers differ."""
        return self.budgets if isinstance(self.n_filters, int) else (*self.budgets, self.n_filters)

    @property
    def layer_filters(self) -> tuple[int, ...]:
        """The channels of each layer."""
        return self.n_filters if isinstance(self.n_filters, tuple) else (self.n_filters,) * self.n_layers

    def layer_budgets(self, budget: Budget | None) -> tuple[int, ...]:
        """`budget` as one int a layer, refused unless every layer has that many channels. None is full."""
        return _one_a_layer("budget", self.n_filters if budget is None else budget, self.layer_filters)

    def truncated(self, budget: Budget) -> "ModelConfig":
        """The configuration of the model that `budget` leaves."""
        filters = self.layer_budgets(budget)
        below = tuple(b for b in self.budgets if b < min(filters))
        return self.replace(n_filters=filters, budgets=(*below, min(filters)))

    @property
    def bank(self) -> FilterBank:
        """The filters of every layer."""
        return FilterBank(self.max_length, self.filter_method)

    def backbone(self) -> "Backbone":
        return Backbone(self)


def _one_a_layer(name: str, value: object, most: "list[int] | tuple[int, ...]") -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        return (whole(name, value, 1, min(most)),) * len(most)
    if len(value) != len(most):
        raise ValueError(
            f"{name} must be one number, or one for each of the {len(most)} layers, got {len(value)} of them"
        )
    return tuple(
        whole(f"{name} of layer {i}", v, 1, m) for i, (v, m) in enumerate(zip(value, most, strict=True))
    )


class DropPath(nn.Module):
    """Stochastic depth: in training, leave the whole branch out for a random share of the batch."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        if not self.training or self.rate == 0:
            return branch
        kept = torch.rand(branch.shape[0], 1, 1, device=branch.device) >= self.rate
        return branch * kept.to(branch.dtype) / (1 - self.rate)


class FeedForward(nn.Module):
    """Two layers with GELU, four times as wide inside."""

    def __init__(self, d_model: int, dropout: float) -> None:
        super().__init__()
        self.widen = nn.Linear(d_model, FFN_FACTOR * d_model)
        self.narrow = nn.Linear(FFN_FACTOR * d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        return self.dropout(self.narrow(self.dropout(F.gelu(self.widen(x)))))


class Block(nn.Module):
    """x + S_K(LN(x)), then x + FFN(LN(x))."""

    def __init__(self, config: ModelConfig, index: int, bank: FilterBank) -> None:
        super().__init__()
        d, filters = config.d_model, config.layer_filters[index]
        self.spectral_norm = nn.LayerNorm(d)
        self.spectral = SpectralLayer(d, filters, bank, GATES[config.gate](d, filters))
        self.ffn_norm = nn.LayerNorm(d)
        self.ffn = FeedForward(d, config.dropout)
        self.drop_path = DropPath(config.drop_path * index / max(1, config.n_layers - 1))

    def forward(
        self, x: Float[Tensor, "B L D"], budget: int, mask: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        x = x + self.drop_path(self.spectral(self.spectral_norm(x), budget, mask))
        return x + self.drop_path(self.ffn(self.ffn_norm(x)))

    def step(self, x: Float[Tensor, "B m D"], memory: Memory) -> Float[Tensor, "B m D"]:
        """`forward` for the next tokens of streams that `memory` remembers."""
        x = x + self.drop_path(self.spectral.step(self.spectral_norm(x), memory))
        return x + self.drop_path(self.ffn(self.ffn_norm(x)))


class Backbone(nn.Module):
    """Embedded inputs to representations, each budget an ordinary smaller network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, i, config.bank) for i in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model)

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        budget: Budget | None = None,
        mask: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        x = self.dropout(x)
        for block, layer_budget in zip(self.blocks, self.config.layer_budgets(budget), strict=True):
            x = block(x, layer_budget, mask)
        return self.norm(x)

    def step(self, x: Float[Tensor, "B m D"], memories: list[Memory]) -> Float[Tensor, "B m D"]:
        """`forward` for the next tokens, whose representations are those of a longer input's last."""
        x = self.dropout(x)
        for block, memory in zip(cast("list[Block]", self.blocks), memories, strict=True):
            x = block.step(x, memory)
        return self.norm(x)

    def skim(
        self, x: Float[Tensor, "B L D"], memories: list[Memory], mask: Bool[Tensor, "B L"] | None = None
    ) -> None:
        """Remember a prompt from the start. What comes after the last memory need not be computed."""
        x = self.dropout(x)
        blocks = cast("list[Block]", self.blocks)
        for i, (block, memory) in enumerate(zip(blocks, memories, strict=True)):
            memory.skim(masked(block.spectral_norm(x), mask))
            if i + 1 < len(memories):
                x = block(x, memory.budget, mask)
