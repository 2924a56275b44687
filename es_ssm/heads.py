"""The four kinds of model: language, sequence classification, paired sequences, decisions.

Each embeds its inputs, runs the backbone at a budget, and reads its answer off. A mask, where given, is true
at real positions and false at padding: padding reaches neither another position nor a pooled mean.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from .decode import DecodeState, outside_inference_mode
from .elastic import ElasticModel
from .errors import instance, tensor, whole
from .model import EMBEDDING_STD, Budget, ModelConfig

PAD = 0
BOS = 1
INTEGERS = (torch.int64, torch.int32)  # what an embedding can look up
NUMBERS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
TRUTHS = (torch.bool,)


class TokenEmbedding(nn.Embedding):
    """N(0, 0.02^2), with zeros for PAD."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.vocab_size, config.d_model, padding_idx=PAD)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=EMBEDDING_STD)
        self._fill_padding_idx_with_zero()

    def forward(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape D"]:
        in_range("token", tokens, self.num_embeddings)
        return super().forward(tokens)


def in_range(name: str, values: Int[Tensor, "*shape"], count: int) -> None:
    """Refuse what an embedding of `count` rows cannot look up; looking costs time anywhere but on a CPU."""
    if values.device.type == "cpu" and not torch.compiler.is_compiling():
        whole(f"largest {name}", int(values.max()), 0, count - 1)
        whole(f"smallest {name}", int(values.min()), 0, count - 1)


def embedder(config: ModelConfig) -> nn.Module:
    """Of tokens, or of vectors where the configuration has an `input_dim`."""
    return TokenEmbedding(config) if config.input_dim is None else nn.Linear(config.input_dim, config.d_model)


def mean_pool(x: Float[Tensor, "B L D"], mask: Bool[Tensor, "B L"] | None) -> Float[Tensor, "B D"]:
    """The mean over real positions."""
    if mask is None:
        return x.mean(1)
    total = x.masked_fill(~mask[..., None], 0).sum(1)  # not a product, which keeps NaN
    return total / mask.sum(1, keepdim=True).clamp(min=1)


def check_inputs(config: ModelConfig, inputs: object, mask: object, *shape: int | str) -> None:
    """That `inputs` are tokens of `shape`, or vectors of `input_dim` numbers there, and `mask` fits them."""
    if config.input_dim is None:
        found = tensor("tokens", inputs, shape, INTEGERS)
    else:
        found = tensor("vectors", inputs, (*shape, config.input_dim), NUMBERS)
    if mask is not None:
        tensor("mask", mask, found.shape[: len(shape)], TRUTHS)


class LanguageModel(ElasticModel):
    """Tokens to the logits of the next token; the embedding is the output head too."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        _refused(config, "input_dim", type(self).__name__)
        self.embedding = TokenEmbedding(config)

    def forward(
        self,
        tokens: Int[Tensor, "B L"],
        budget: Budget | None = None,
        mask: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L V"]:
        check_inputs(self.config, tokens, mask, "B", "L")
        x = self.backbone(self.embedding(tokens), budget, mask)
        return F.linear(x, self.embedding.weight)

    @outside_inference_mode
    def start(self, batch: int = 1, budget: Budget | None = None, rollback: int = 0) -> DecodeState:
        """The state of `batch` streams before their first token, to be stepped at `budget`.

        It can forget the last `rollback` tokens at any time, for more memory.
        """
        return DecodeState(self.config, budget, batch, self.embedding.weight, rollback)

    @outside_inference_mode
    @torch.no_grad()
    def prefill(
        self,
        tokens: Int[Tensor, "B L"],
        budget: Budget | None = None,
        mask: Bool[Tensor, "B L"] | None = None,
        rollback: int = 0,
    ) -> DecodeState:
        """The state after a prompt, read at once. Prompts of several lengths are padded in front."""
        check_inputs(self.config, tokens, mask, "B", "L")
        state = self.start(len(tokens), budget, rollback)
        state.admit(tokens, self.config)
        self.backbone.skim(self.embedding(tokens), state.memories, mask)
        return state

    @outside_inference_mode
    @torch.no_grad()
    def step(
        self, tokens: Int[Tensor, "B ..."], state: DecodeState
    ) -> tuple[Float[Tensor, "B ... V"], DecodeState]:
        """The logits after one more token a stream, (B,) to (B, V), or after each of m, (B, m) to (B, m, V);
        and the state, which is changed in place."""
        many = tokens[:, None] if isinstance(tokens, Tensor) and tokens.ndim == 1 else tokens
        check_inputs(self.config, many, None, "B", "m")
        instance("state", state, DecodeState).admit(many, self.config)
        x = self.backbone.step(self.embedding(many), state.memories)
        return F.linear(x, self.embedding.weight).view(*tokens.shape, -1), state


class SequenceClassifier(ElasticModel):
    """Tokens or vectors to the logits of `n_classes`, by the mean over time."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding = embedder(config)
        self.classes = nn.Linear(config.d_model, _needed(config, "n_classes", type(self).__name__))

    def forward(
        self, inputs: Tensor, budget: Budget | None = None, mask: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B C"]:
        check_inputs(self.config, inputs, mask, "B", "L")
        x = self.backbone(self.embedding(inputs), budget, mask)
        return self.classes(mean_pool(x, mask))


class PairClassifier(ElasticModel):
    """Two sequences, stacked as (B, 2, L), to the logits of `n_classes`: one tower, used twice."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding = embedder(config)
        self.classes = nn.Linear(4 * config.d_model, _needed(config, "n_classes", type(self).__name__))

    def forward(
        self, inputs: Tensor, budget: Budget | None = None, mask: Bool[Tensor, "B 2 L"] | None = None
    ) -> Float[Tensor, "B C"]:
        check_inputs(self.config, inputs, mask, "B", 2, "L")
        flat = None if mask is None else mask.flatten(0, 1)
        x = self.backbone(self.embedding(inputs.flatten(0, 1)), budget, flat)
        first, second = mean_pool(x, flat).unflatten(0, (-1, 2)).unbind(1)
        return self.classes(torch.cat([first, second, first * second, first - second], dim=-1))


class Trajectories(NamedTuple):
    """T steps of behaviour: the return still to come, the state, the action taken, the time of each."""

    returns: Float[Tensor, "B T 1"]
    states: Float[Tensor, "B T S"]
    actions: Float[Tensor, "B T A"]
    times: Int[Tensor, "B T"]


class DecisionModel(ElasticModel):
    """Interleaved (return, state, action) tokens to the next action, read at the state, within [-1, 1]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        name, d = type(self).__name__, config.d_model
        _refused(config, "input_dim", name)
        state, action = _needed(config, "state_dim", name), _needed(config, "action_dim", name)
        self.embed_time = nn.Embedding(config.episode_length, d)
        self.embed_return = nn.Linear(1, d)
        self.embed_state = nn.Linear(state, d)
        self.embed_action = nn.Linear(action, d)
        self.norm = nn.LayerNorm(d)
        self.action = nn.Linear(d, action)

    def forward(
        self, inputs: Trajectories, budget: Budget | None = None, mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T A"]:
        self._check(inputs, mask)
        time = self.embed_time(inputs.times)
        steps = [
            self.embed_return(inputs.returns) + time,
            self.embed_state(inputs.states) + time,
            self.embed_action(inputs.actions) + time,
        ]
        tokens = torch.stack(steps, dim=2).flatten(1, 2)  # (B, 3T, D)
        if mask is not None:
            mask = mask.repeat_interleave(3, dim=1)
        x = self.backbone(self.norm(tokens), budget, mask)
        return self.action(x[:, 1::3]).tanh()

    def _check(self, inputs: object, mask: object) -> None:
        returns, states, actions, times = instance("inputs", inputs, Trajectories)
        steps = tensor("times", times, ("B", "T"), INTEGERS).shape
        tensor("returns", returns, (*steps, 1), NUMBERS)
        tensor("states", states, (*steps, self.embed_state.in_features), NUMBERS)
        tensor("actions", actions, (*steps, self.embed_action.in_features), NUMBERS)
        in_range("time", times, self.embed_time.num_embeddings)
        if mask is not None:
            tensor("mask", mask, steps, TRUTHS)


MODELS: dict[str, type[ElasticModel]] = {
    kind.__name__: kind for kind in (LanguageModel, SequenceClassifier, PairClassifier, DecisionModel)
}


def _needed(config: ModelConfig, field: str, name: str) -> int:
    value = getattr(config, field)
    if value is None:
        raise ValueError(f"{name} needs {field} in its ModelConfig, which has None")
    return int(value)


def _refused(config: ModelConfig, field: str, name: str) -> None:
    value = getattr(config, field)
    if value is not None:
        raise ValueError(
            f"{name} has no use for {field}, which must be None in its ModelConfig, got {value!r}"
        )
