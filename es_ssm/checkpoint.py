"""A model as a folder: `config.json` and `model.safetensors`, no code, no pickle, checksums, atomic.

Filters are never in it: they follow from the configuration and are computed, or read from the cache.
"""

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .config import Config
from .elastic import ElasticModel
from .errors import choice, instance
from .files import new_folder, sha256
from .heads import MODELS
from .model import ModelConfig

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
FORMAT_VERSION = 1
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Header(Config):
    """What `config.json` says."""

    format: Literal["es-ssm"]
    format_version: int
    model: str
    config: dict[str, Any]
    weights_sha256: str


def save(model: ElasticModel, folder: str | Path) -> Path:
    """Write `model` to a new `folder`. An existing one is refused, unless it is empty.

    What `load` would refuse is refused here too: values that are not finite, two precisions in one model,
    a class of one's own.
    """
    kind = type(instance("model", model, ElasticModel))
    if MODELS.get(kind.__name__) is not kind:
        raise ValueError(
            f"model must be one of {', '.join(MODELS)} to be saved, got a class {kind.__qualname__}"
        )
    if any(p.is_meta for p in model.parameters()):
        raise ValueError(f"model has no values to save: this {kind.__name__} is on the meta device")
    weights = {name: p.detach().contiguous().cpu() for name, p in model.named_parameters()}
    _check(f"this {kind.__name__}", weights, _blank(kind, model.config))
    folder = Path(folder)
    with new_folder(folder) as work:
        save_file(weights, work / WEIGHTS_FILE)
        header = Header(
            format="es-ssm",
            format_version=FORMAT_VERSION,
            model=kind.__name__,
            config=model.config.model_dump(mode="json"),
            weights_sha256=sha256(work / WEIGHTS_FILE),
        )
        (work / CONFIG_FILE).write_text(json.dumps(header.model_dump(), indent=2) + "\n")
    return folder


def load(folder: str | Path, device: str | torch.device = "cpu") -> ElasticModel:
    """The model in `folder`, in evaluation mode. Anything wrong with the files is refused by name."""
    folder, device = Path(folder), _usable(device)
    header, config = read_header(folder)
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no {WEIGHTS_FILE}, which its {CONFIG_FILE} promises")
    if sha256(path) != header.weights_sha256:
        raise ValueError(f"{path} is damaged or not the file that was saved: its checksum is another one")
    model = _blank(MODELS[header.model], config)
    try:
        with safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as problem:
        raise ValueError(f"{path} is not a sound safetensors file: {problem}") from None
    _check(str(path), weights, model)
    # a copy, as the file's tensors lie at any multiple of 4 bytes, where kernels may round otherwise
    model.load_state_dict({name: t.to(device, copy=True) for name, t in weights.items()}, assign=True)
    return model.eval()


def read_header(folder: Path) -> tuple[Header, ModelConfig]:
    """What the folder says it holds, without its weights."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a saved model: it has no {CONFIG_FILE}")
    try:
        values = json.loads(path.read_text())
    except (ValueError, RecursionError) as problem:  # undecodable bytes, not JSON, or nested without end
        raise ValueError(f"{path} is not readable JSON: {problem}") from None
    if not isinstance(values, dict) or values.get("format") != "es-ssm":
        raise ValueError(f"{path} does not describe an es-ssm model: it needs a key 'format' of 'es-ssm'")
    version = values.get("format_version")
    if type(version) is int and version > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format_version {version}, newer than the {FORMAT_VERSION} that is known here: "
            "update es-ssm"
        )
    if type(version) is not int or version != FORMAT_VERSION:
        raise ValueError(f"{path}: format_version must be the whole number {FORMAT_VERSION}, got {version!r}")
    try:
        header = Header(**values)
        choice("model", header.model, MODELS)
        missing = [name for name in ModelConfig.model_fields if name not in header.config]
        if missing:
            raise ValueError(f"config needs {', '.join(missing)}")
        return header, ModelConfig(**header.config)
    except ValueError as problem:
        raise ValueError(f"{path}: {problem}") from None


def _blank(kind: type[ElasticModel], config: ModelConfig) -> ElasticModel:
    """The model without its numbers."""
    with torch.device("meta"):
        return kind(config)


def _check(where: str, weights: dict[str, Tensor], model: ElasticModel) -> None:
    """That `weights` are just those of `model`, in one precision that it can run in, and finite."""
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    for name in sorted(expected.keys() ^ weights.keys()):
        raise ValueError(f"{where} {'lacks' if name in expected else 'has an unknown'} tensor {name}")
    first, *_ = weights
    for name, tensor in weights.items():
        if tuple(tensor.shape) != expected[name]:
            raise ValueError(f"{where}: {name} has shape {tuple(tensor.shape)}, expected {expected[name]}")
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{where}: {name} is {tensor.dtype}, expected {' or '.join(map(str, DTYPES))}")
        if tensor.dtype != weights[first].dtype:
            raise ValueError(
                f"{where}: {name} is {tensor.dtype} but {first} {weights[first].dtype}, expected one"
            )
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{where}: {name} holds values that are not finite numbers")


def _usable(device: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as problem:
        reason = str(problem).splitlines()[0]
        raise ValueError(f"device must be one that torch can use here, got {device!r}: {reason}") from None
