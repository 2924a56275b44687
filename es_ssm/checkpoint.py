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
from .errors import choice
from .files import new_folder, sha256
from .heads import MODELS
from .model import ModelConfig

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
FORMAT_VERSION = 1


class Header(Config):
    """What `config.json` says."""

    format: Literal["es-ssm"]
    format_version: int
    model: str
    config: dict[str, Any]
    weights_sha256: str


def save(model: ElasticModel, folder: str | Path) -> Path:
    """Write `model` to a new `folder`. An existing one is refused, unless it is empty."""
    folder = Path(folder)
    weights = {name: p.detach().contiguous().cpu() for name, p in model.named_parameters()}
    with new_folder(folder) as work:
        save_file(weights, work / WEIGHTS_FILE)
        header = Header(
            format="es-ssm",
            format_version=FORMAT_VERSION,
            model=type(model).__name__,
            config=model.config.model_dump(mode="json"),
            weights_sha256=sha256(work / WEIGHTS_FILE),
        )
        (work / CONFIG_FILE).write_text(json.dumps(header.model_dump(), indent=2) + "\n")
    return folder


def load(folder: str | Path, device: str | torch.device = "cpu") -> ElasticModel:
    """The model in `folder`, in evaluation mode. Anything wrong with the files is refused by name."""
    folder = Path(folder)
    header, config = read_header(folder)
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no {WEIGHTS_FILE}, which its {CONFIG_FILE} promises")
    if sha256(path) != header.weights_sha256:
        raise ValueError(f"{path} is damaged or not the file that was saved: its checksum is another one")
    with torch.device("meta"):
        model = MODELS[header.model](config)
    model.load_state_dict(_weights(path, model, device), assign=True)
    return model.eval()


def read_header(folder: Path) -> tuple[Header, ModelConfig]:
    """What the folder says it holds, without its weights."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a saved model: it has no {CONFIG_FILE}")
    try:
        values = json.loads(path.read_text())
    except ValueError as problem:  # undecodable bytes, or not JSON
        raise ValueError(f"{path} is not readable JSON: {problem}") from None
    if not isinstance(values, dict) or values.get("format") != "es-ssm":
        raise ValueError(f"{path} does not describe an es-ssm model: it needs a key 'format' of 'es-ssm'")
    version = values.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format_version {version}, newer than the {FORMAT_VERSION} that is known here: "
            "update es-ssm"
        )
    try:
        header = Header(**values)
        choice("model", header.model, MODELS)
        return header, ModelConfig(**header.config)
    except ValueError as problem:
        raise ValueError(f"{path}: {problem}") from None


def _weights(path: Path, model: ElasticModel, device: str | torch.device) -> dict[str, Tensor]:
    """The tensors of the file, if they are just those of the model, and finite."""
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as problem:
        raise ValueError(f"{path} is not a sound safetensors file: {problem}") from None
    for name in sorted(expected.keys() ^ found.keys()):
        raise ValueError(f"{path} {'lacks' if name in expected else 'has an unknown'} tensor {name}")
    for name, tensor in found.items():
        if tuple(tensor.shape) != expected[name]:
            raise ValueError(f"{path}: {name} has shape {tuple(tensor.shape)}, expected {expected[name]}")
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise ValueError(f"{path}: {name} holds values that are not finite numbers")
    return found
