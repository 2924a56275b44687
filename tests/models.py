"""Small models and inputs for them, one of each head."""

import torch

from es_ssm import (
    DecisionModel,
    ElasticModel,
    LanguageModel,
    ModelConfig,
    PairClassifier,
    SequenceClassifier,
    Trajectories,
)

HEADS = [LanguageModel, SequenceClassifier, PairClassifier, DecisionModel]
LENGTH = 48


def config(**changes: object) -> ModelConfig:
    values: dict[str, object] = {
        "d_model": 16,
        "n_layers": 3,
        "n_filters": 12,
        "max_length": LENGTH,
        "n_classes": 5,
        "state_dim": 7,
        "action_dim": 2,
    }
    return ModelConfig(**{**values, **changes})


def make(kind: type[ElasticModel] = LanguageModel, seed: int = 0, **changes: object) -> ElasticModel:
    """A model in evaluation mode whose every part matters: no projection is near zero."""
    torch.manual_seed(seed)
    model = kind(config(**changes)).eval()
    with torch.no_grad():
        for block in model.backbone.blocks:
            block.spectral.projections.normal_(std=0.2)
    return model


def inputs(kind: type[ElasticModel] = LanguageModel, batch: int = 2, length: int = LENGTH) -> object:
    if kind is DecisionModel:
        steps = length // 3
        return Trajectories(
            torch.randn(batch, steps, 1),
            torch.randn(batch, steps, 7),
            torch.randn(batch, steps, 2),
            torch.arange(steps).expand(batch, steps),
        )
    shape = (batch, 2, length) if kind is PairClassifier else (batch, length)
    return torch.randint(2, 258, shape)
