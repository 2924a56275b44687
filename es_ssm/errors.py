"""Checks of arguments: every refusal is one sentence with the name, the value and what was expected."""

import difflib
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

Kind = TypeVar("Kind")


class MissingExtra(ImportError):
    """An optional dependency that is not installed."""


def whole(name: str, value: object, low: int, high: int | None = None) -> int:
    """`value` as an int within [low, high]; booleans and floats are refused."""
    number = None
    if not isinstance(value, bool):
        with suppress(TypeError):
            number = index(value)  # type: ignore[arg-type]
    if number is None or number < low or (high is not None and number > high):
        span = f"from {low} to {high}" if high is not None else f"of at least {low}"
        raise ValueError(f"{name} must be a whole number {span}, got {shown(value)}")
    return number


def instance(name: str, value: object, kind: type[Kind]) -> Kind:
    """`value` if it is a `kind`."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be of type {kind.__name__}, got {shown(value)}")
    return value


def tensor(
    name: str, value: object, shape: Sequence[int | str], dtypes: "Collection[torch.dtype]"
) -> "torch.Tensor":
    """`value` if it is a tensor of `shape`, where a letter is any size but 0, and of one of `dtypes`."""
    from torch import Tensor

    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor of shape {_tuple(shape)}, got {shown(value)}")
    sizes = tuple(value.shape)
    fits = len(sizes) == len(shape) and all(
        size == want if isinstance(want, int) else size > 0 for size, want in zip(sizes, shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} must be of shape {_tuple(shape)} with no size 0, got {_tuple(sizes)}")
    if value.dtype not in dtypes:
        raise ValueError(f"{name} must be of type {' or '.join(map(str, dtypes))}, got {value.dtype}")
    return value


def _tuple(sizes: Sequence[int | str]) -> str:
    """As Python writes a tuple, with letters unquoted."""
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


def shown(value: object) -> str:
    """`value` as it is written, on one line and not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def choice(name: str, value: object, allowed: Iterable[str]) -> str:
    """`value` if it is one of `allowed`; otherwise the error names the nearest."""
    options = list(allowed)
    if isinstance(value, str) and value in options:
        return value
    raise ValueError(
        f"{name} must be one of {', '.join(options)}, got {shown(value)}{nearest(value, options)}"
    )


def nearest(value: object, options: Iterable[str]) -> str:
    """' (did you mean X?)', or nothing."""
    close = difflib.get_close_matches(str(value), list(options), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def optional(module: str, extra: str) -> Any:
    """Import `module`, which the optional extra `extra` of es-ssm brings."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise MissingExtra(f"{package} is not installed: pip install 'es-ssm[{extra}]' brings it") from None
