"""The base of every configuration: typed, frozen, no unknown keys, and errors of one sentence."""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import nearest, shown

AnyConfig = TypeVar("AnyConfig", bound="Config")


class Config(BaseModel):
    """Subclasses state their fields, with their defaults, beside the code that they configure.

    Types are strict: a string is never read as a number.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as problem:
            raise ValueError(_sentence(type(self), problem)) from None

    def replace(self: AnyConfig, **changes: Any) -> AnyConfig:
        """The same configuration with `changes`, checked as a whole again."""
        return type(self)(**{**dict(self), **changes})


def _sentence(kind: type[BaseModel], problem: ValidationError) -> str:
    """The first problem that pydantic found, as name, value and way out."""
    first = problem.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"{kind.__name__} needs {name}"
    if first["type"] == "extra_forbidden":
        return f"{kind.__name__} has no {name!r}{nearest(name, kind.model_fields)}"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    return f"{name}: {first['msg'].lower()}, got {shown(first['input'])}"
