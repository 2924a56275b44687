"""The models of the paper, by name, and a small one for a laptop."""

from typing import NamedTuple

from .elastic import ElasticModel
from .errors import choice
from .heads import DecisionModel, LanguageModel, SequenceClassifier
from .model import ModelConfig


class Recipe(NamedTuple):
    about: str
    kind: type[ElasticModel]
    config: ModelConfig


def _language(about: str, d_model: int, n_layers: int, max_length: int = 2048) -> Recipe:
    config = ModelConfig(d_model=d_model, n_layers=n_layers, n_filters=32, max_length=max_length)
    return Recipe(about, LanguageModel, config)


RECIPES = {
    "laptop": _language("a byte model that trains in minutes on two cores", 128, 4, 256),
    "slimpajama-1.3b": _language("the main scaling run, appendix F.5", 1262, 20),
    "generality-335m": _language("the cross-architecture replication, appendix F.9", 768, 14),
    "cadence-287m": _language("the anchor cadence study, appendix D", 512, 27),
    "precision-160m": _language("the precision study, appendix C.3", 512, 15),
    "ablation-770m": _language("the ablations, appendix H", 1024, 18),
    "lra-50m": Recipe(
        "Long Range Arena with ten classes and 1,024 steps (sCIFAR), appendix F.6",
        SequenceClassifier,
        ModelConfig(d_model=512, n_layers=5, n_filters=32, max_length=1024, n_classes=10),
    ),
    "sc10-10m": Recipe(
        "Speech Commands, 100 frames of 40 mel bins, appendix F.7",
        SequenceClassifier,
        ModelConfig(d_model=256, n_layers=4, n_filters=32, max_length=100, input_dim=40, n_classes=10),
    ),
    "d4rl-halfcheetah": Recipe(
        "offline RL, 20 steps of (return, state, action), appendix F.8",
        DecisionModel,
        ModelConfig(
            d_model=72,
            n_layers=3,
            n_filters=32,
            max_length=60,
            budgets=(2, 4, 8, 16, 32),
            state_dim=17,
            action_dim=6,
        ),
    ),
}


def recipe(name: str) -> Recipe:
    return RECIPES[choice("recipe", name, RECIPES)]
