"""One token at a time: what a whole model remembers of a batch of streams, and how that is kept in a file.

    state = model.prefill(tokens, budget=8)         # the prompt but for its last token
    logits, state = model.step(token, state)        # its last token, and then each new one

A state changes in place: `copy` it to keep it. Its size and the time of a step do not depend on how many
tokens came before. Together they may be as many as the model's horizon; beyond it the filters say nothing,
and a step is refused.
"""

import copy
import hashlib
import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .elastic import ElasticModel
from .errors import instance, whole
from .files import new_file
from .memory import Chunk, Memory
from .model import Budget, ModelConfig

FORMAT = "es-ssm-state-1"  # a key of the file's metadata; what it says is below


class DecodeState:
    """Made by `model.start` or `model.prefill`, used by `model.step`."""

    def __init__(
        self, config: ModelConfig, budget: Budget | None, batch: int, like: Tensor, rollback: int = 0
    ) -> None:
        self.config = config
        self.budgets = config.layer_budgets(budget)
        self.batch = whole("batch", batch, 1)
        self.keeps = whole("rollback", rollback, 0, config.max_length)
        bank = config.bank
        self.memories = [Memory(bank, k, self.batch, like, self.keeps) for k in self.budgets]

    @property
    def position(self) -> int:
        """How many tokens it has seen."""
        return self.memories[0].position

    @property
    def depth(self) -> int:
        """How many of its last tokens it can forget: after a step at least what it was made to keep."""
        return min(memory.depth for memory in self.memories)

    @property
    def nbytes(self) -> int:
        """What it occupies."""
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def copy(self) -> "DecodeState":
        """Another one, independent of this."""
        twin = copy.copy(self)
        twin.memories = [memory.copy() for memory in self.memories]
        return twin

    def rollback(self, tokens: int) -> "DecodeState":
        """Forget the last `tokens`, `depth` of them at most."""
        whole("tokens to roll back", tokens, 0, self.depth)
        for memory in self.memories:
            memory.rollback(tokens)
        return self

    def admit(self, inputs: Int[Tensor, "B m"], config: ModelConfig) -> None:
        """Refuse what cannot come next."""
        batch, tokens = inputs.shape
        if config != self.config:
            raise ValueError(
                "state is of a model with another configuration: make it with this one's start()"
            )
        if batch != self.batch:
            raise ValueError(f"tokens must be for the {self.batch} streams of the state, got {batch}")
        if self.position + tokens > self.config.max_length:
            raise ValueError(
                f"token {self.position + tokens} is beyond the model's horizon of {self.config.max_length} "
                "(max_length): start a new state from the tokens that still matter"
            )

    def save(self, file: str | Path) -> Path:
        """Write it to a new `file`, to be read by `load_state` with the same model."""
        file, tensors = Path(file), self._tensors()
        if file.exists():
            raise FileExistsError(f"{file} exists already and nothing is overwritten: choose another name")
        said = {
            "config": self.config.model_dump(mode="json"),
            "budgets": list(self.budgets),
            "batch": self.batch,
            "rollback": self.keeps,
            "position": self.position,
            "older": [len(memory.older) for memory in self.memories],
        }
        said["sha256"] = _digest(said, tensors)
        with new_file(file) as work:
            save_file(tensors, work, {FORMAT: json.dumps(said)})
        return file

    def _tensors(self) -> dict[str, Tensor]:
        return {
            f"layer {layer}, chunk {i}, {name}": tensor
            for layer, memory in enumerate(self.memories)
            for i, chunk in enumerate([*memory.older, memory.current])
            for name, tensor in chunk._asdict().items()
        }

    def _fill(self, tensors: dict[str, Tensor], said: dict[str, Any]) -> None:
        """With the tensors of a state that was saved."""
        position = whole("position", said["position"], 0, self.config.max_length)
        for layer, (memory, count) in enumerate(zip(self.memories, said["older"], strict=True)):
            memory.position = position
            chunks = [
                Chunk(*(tensors.pop(f"layer {layer}, chunk {i}, {name}") for name in Chunk._fields))
                for i in range(whole("older chunks", count, 0, memory.older.maxlen) + 1)
            ]
            for found, blank in (
                (f, b) for chunk in chunks for f, b in zip(chunk, memory.current, strict=True)
            ):
                if found.shape != blank.shape or found.dtype != blank.dtype:
                    raise ValueError(
                        f"a tensor of layer {layer} is {found.dtype} of shape {tuple(found.shape)}"
                    )
                if not torch.isfinite(found).all():
                    raise ValueError(f"a tensor of layer {layer} holds values that are not finite numbers")
            *before, memory.current = chunks
            memory.older.extend(before)
        for name in tensors:
            raise ValueError(f"it has an unknown tensor {name}")


def load_state(file: str | Path, model: ElasticModel) -> DecodeState:
    """The state in `file`, for the model that made it."""
    file, config = Path(file), instance("model", model, ElasticModel).config
    like = next(model.parameters())
    if not file.is_file():
        raise FileNotFoundError(f"{file} is not there")
    try:
        with safe_open(file, framework="pt") as content:
            text = (content.metadata() or {}).get(FORMAT, "{}")
            names = list(content.keys())
            tensors = {name: content.get_tensor(name) for name in names}
        said = json.loads(text)
        if said.pop("sha256", None) != _digest(said, tensors):
            raise ValueError("its checksum is another one")
        if said["config"] != config.model_dump(mode="json"):
            raise ValueError("it is of a model with another configuration")
        state = DecodeState(config, tuple(said["budgets"]), said["batch"], like, said["rollback"])
        state._fill({name: t.to(like.device, copy=True) for name, t in tensors.items()}, said)
    except (SafetensorError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as problem:
        raise ValueError(f"{file} is no decoding state of this model, or damaged: {problem}") from None
    return state


def _digest(said: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


Call = TypeVar("Call", bound=Callable[..., Any])


def outside_inference_mode(call: Call) -> Call:
    """What a state holds changes in place, also later and elsewhere: no tensor of inference mode could."""

    @wraps(call)
    def run(*arguments: Any, **named: Any) -> Any:
        with torch.inference_mode(False):
            return call(*arguments, **named)

    return cast(Call, run)
