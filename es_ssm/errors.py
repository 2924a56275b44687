"""Checks of arguments: every refusal is one sentence with the name, the value and what was expected."""

import difflib
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from operator import index
from typing import Any


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
        raise ValueError(f"{name} must be a whole number {span}, got {value!r}")
    return number


def choice(name: str, value: object, allowed: Iterable[str]) -> str:
    """`value` if it is one of `allowed`; otherwise the error names the nearest."""
    options = list(allowed)
    if isinstance(value, str) and value in options:
        return value
    raise ValueError(f"{name} must be one of {', '.join(options)}, got {value!r}{nearest(value, options)}")


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
