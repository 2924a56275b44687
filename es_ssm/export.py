"""One checkpoint, many models: each budget written as a folder of its own."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from .checkpoint import save
from .elastic import ElasticModel, truncate
from .model import Budget


def export(model: ElasticModel, folder: str | Path, budgets: Iterable[Budget]) -> Iterator[Path]:
    """Write `model` truncated to each budget under `folder`, giving each path when it is there.

    All budgets are checked before the first is written.
    """
    wanted = list(budgets)
    targets = [Path(folder) / budget_name(budget) for budget in wanted]
    for budget, target in zip(wanted, targets, strict=True):
        model.config.layer_budgets(budget)
        if target.exists():
            raise FileExistsError(
                f"{target} exists already and nothing is overwritten: remove it, or choose another"
            )
    for budget, target in zip(wanted, targets, strict=True):
        yield save(truncate(model, budget), target)


def budget_name(budget: Budget) -> str:
    """budget-8, or budget-3-3-4 for one number a layer."""
    numbers = budget if isinstance(budget, tuple) else (budget,)
    return "-".join(["budget", *map(str, numbers)])


def parse_budget(text: str) -> Budget:
    """'8', or '3,3,4' for one number a layer."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"budget must be a whole number, or one a layer as in 3,3,4, got {text!r}") from None
    return numbers[0] if len(numbers) == 1 else numbers
