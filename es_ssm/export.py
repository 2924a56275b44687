"""One checkpoint, many models: each budget written as a folder of its own."""

from collections.abc import Iterable
from pathlib import Path

from .checkpoint import save
from .elastic import ElasticModel, truncate
from .errors import instance, shown
from .files import refuse_existing
from .model import Budget


def export(model: ElasticModel, folder: str | Path, budgets: Iterable[Budget]) -> list[Path]:
    """Write `model` truncated to each budget, as a folder each under `folder`; a repeated budget once.

    All budgets are checked before the first is written.
    """
    instance("model", model, ElasticModel)
    if not isinstance(budgets, Iterable) or isinstance(budgets, str):
        raise ValueError(f"budgets must be a list of budgets, got {shown(budgets)}")
    targets = {}
    for budget in budgets:
        model.config.layer_budgets(budget)
        target = Path(folder) / budget_name(budget)
        refuse_existing(target)
        targets[target] = budget
    return [save(truncate(model, budget), target) for target, budget in targets.items()]


def budget_name(budget: Budget) -> str:
    """budget-8, or budget-3-3-4 for one number a layer."""
    numbers = budget if isinstance(budget, (list, tuple)) else (budget,)
    return "-".join(["budget", *map(str, numbers)])


def parse_budget(text: str) -> Budget:
    """'8', or '3,3,4' for one number a layer."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"budget must be a whole number, or one a layer as in 3,3,4, got {text!r}") from None
    return numbers[0] if len(numbers) == 1 else numbers
