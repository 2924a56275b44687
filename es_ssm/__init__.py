"""Elastic spectral state space models: train a sequence model once, ship it at every compute budget."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .bank import FilterBank as FilterBank
    from .budget import BudgetSampler as BudgetSampler
    from .checkpoint import load as load
    from .checkpoint import save as save
    from .decode import DecodeState as DecodeState
    from .decode import load_state as load_state
    from .elastic import ElasticModel as ElasticModel
    from .elastic import truncate as truncate
    from .export import export as export
    from .filters import hankel_filters as hankel_filters
    from .heads import DecisionModel as DecisionModel
    from .heads import LanguageModel as LanguageModel
    from .heads import PairClassifier as PairClassifier
    from .heads import SequenceClassifier as SequenceClassifier
    from .heads import Trajectories as Trajectories
    from .layer import SpectralLayer as SpectralLayer
    from .model import ModelConfig as ModelConfig
    from .realization import realize as realize

_HOMES = {
    "bank": ["FilterBank"],
    "budget": ["BudgetSampler"],
    "checkpoint": ["load", "save"],
    "decode": ["DecodeState", "load_state"],
    "elastic": ["ElasticModel", "truncate"],
    "export": ["export"],
    "filters": ["hankel_filters"],
    "heads": ["DecisionModel", "LanguageModel", "PairClassifier", "SequenceClassifier", "Trajectories"],
    "layer": ["SpectralLayer"],
    "model": ["ModelConfig"],
    "realization": ["realize"],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `es-ssm --help` should not wait for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'es_ssm' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
