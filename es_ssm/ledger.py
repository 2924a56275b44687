"""The ledger: parameters and multiply-accumulates at every budget, in closed form (appendix E).

`macs` are multiply-accumulates a token, which the paper calls FLOPs; a FLOP counter shows twice as many.
Elementwise work (norms, activations, gating) is left out, as there.
"""

from typing import NamedTuple

from .chunks import feature_macs
from .elastic import ElasticModel
from .heads import DecisionModel, LanguageModel, PairClassifier
from .model import FFN_FACTOR, Budget, ModelConfig


class Entry(NamedTuple):
    """One part of a model. `scales` says whether it shrinks with the budget."""

    part: str
    parameters: int
    macs: float
    scales: bool


class Total(NamedTuple):
    """A layer, or a whole model, at one budget."""

    budget: Budget
    parameters: int
    macs: float


def layer_entries(config: ModelConfig, budget: int) -> list[Entry]:
    """One block at `budget` channels."""
    d, half = config.d_model, config.d_model // 2
    adaptive, channel = config.gate == "adaptive", config.gate == "channel"
    wide = FFN_FACTOR * d
    features = d * sum(feature_macs(config.bank, budget, config.max_length)) / config.max_length
    return [
        Entry("channel projections M_k", budget * d * d, budget * d * d, True),
        Entry("gate, output row", budget * half * adaptive, budget * half * adaptive, True),
        Entry("gate, output bias", budget * (adaptive or channel), 0, True),
        Entry("spectral features", 0, features, True),
        Entry("gate, hidden layer", (d * half + half) * adaptive, d * half * adaptive, False),
        Entry("FFN", 2 * d * wide + wide + d, 2 * d * wide, False),
        Entry("two LayerNorms", 4 * d, 0, False),
    ]


def head_entries(config: ModelConfig, kind: type[ElasticModel]) -> list[Entry]:
    """What comes before and after the blocks: the same at every budget."""
    d, vocabulary = config.d_model, config.vocab_size
    norm = Entry("last LayerNorm", 2 * d, 0, False)
    if kind is LanguageModel:
        return [norm, Entry("embedding, tied to the head", vocabulary * d, vocabulary * d, False)]
    if kind is DecisionModel:
        state, action = config.state_dim or 0, config.action_dim or 0
        inputs = (1 + state + action) * d
        return [
            norm,
            Entry(
                "embeddings and their LayerNorm",
                config.episode_length * d + inputs + 5 * d,
                inputs / 3,
                False,
            ),
            Entry("action head", d * action + action, d * action / 3, False),
        ]
    vectors = config.input_dim
    embedding = (
        Entry("embedding", vocabulary * d, 0, False)
        if vectors is None
        else Entry("input layer", vectors * d + d, vectors * d, False)
    )
    classes, pooled = config.n_classes or 0, 4 * d if kind is PairClassifier else d
    sequences = 2 if kind is PairClassifier else 1
    head = pooled * classes / (sequences * config.max_length)
    return [norm, embedding, Entry("class head", pooled * classes + classes, head, False)]


def layer_total(config: ModelConfig, budget: int) -> Total:
    """One block at `budget` channels."""
    return _summed(budget, layer_entries(config, budget))


def total(config: ModelConfig, kind: type[ElasticModel], budget: Budget | None = None) -> Total:
    """The whole model at `budget`."""
    layers = config.layer_budgets(budget)
    entries = [e for k in layers for e in layer_entries(config, k)] + head_entries(config, kind)
    return _summed(config.n_filters if budget is None else budget, entries)


def _summed(budget: Budget, entries: list[Entry]) -> Total:
    return Total(budget, sum(e.parameters for e in entries), sum(e.macs for e in entries))
