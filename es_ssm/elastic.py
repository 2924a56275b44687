"""The contract of an elastic model, and truncation, which needs nothing else.

A model whose every tensor at budget K is the leading block of the same tensor at a larger budget can be cut
to any budget by copying those blocks into a model built small. Training, evaluation and export know models
by this contract alone.
"""

from typing import TypeVar

import torch
from torch import nn

from .errors import instance
from .model import Budget, ModelConfig


class ElasticModel(nn.Module):
    """`forward(inputs, budget=None)`, `budgets`, `truncate(budget)`. Subclasses are the heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = instance("config", config, ModelConfig)
        self.backbone = config.backbone()

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """What the model is meant to run at, full budget last."""
        return self.config.all_budgets

    def truncate(self, budget: Budget) -> "ElasticModel":
        return truncate(self, budget)


Model = TypeVar("Model", bound=ElasticModel)


def truncate(model: Model, budget: Budget) -> Model:
    """The model that `budget` leaves: physically smaller, with copies of what it keeps and nothing else.

    Its full budget computes bit for bit what `model` computes at `budget`.
    """
    instance("model", model, ElasticModel)
    with torch.device("meta"):
        small = type(model)(model.config.truncated(budget))
    whole = dict(model.named_parameters())
    kept = {
        name: whole[name].detach()[tuple(slice(size) for size in block.shape)].clone()
        for name, block in small.named_parameters()
    }
    small.load_state_dict(kept, assign=True)
    for name, parameter in small.named_parameters():
        parameter.requires_grad_(whole[name].requires_grad)
    return small.train(model.training)
