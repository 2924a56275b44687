"""The demonstration: one elastic model, every budget a smaller model of its own."""

import time
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from .checkpoint import load
from .elastic import ElasticModel
from .export import export
from .filters import hankel_filters
from .heads import LanguageModel
from .plots import budget_costs, filter_shapes, filter_spectrum, picture
from .recipes import recipe

REPEATS = 15


class Measured(NamedTuple):
    """One export."""

    budget: int
    parameters: int
    megabytes: float
    milliseconds: float


def run(out: Path, console: Console) -> None:
    """Build, export, measure and draw, into a folder that was not there before."""
    out = _unused(out)
    config = recipe("laptop").config
    torch.manual_seed(0)
    model = LanguageModel(config).eval()
    tokens = torch.randint(2, config.vocab_size, (1, config.max_length))

    exports: dict[int, ElasticModel] = {}
    rows = []
    with console.status("exporting every budget"):
        paths = dict(zip(config.budgets, export(model, out / "exports", config.budgets), strict=True))
        for budget, path in paths.items():
            exports[budget] = load(path)
            if not torch.equal(exports[budget](tokens), model(tokens, budget)):
                raise ArithmeticError(f"the export at budget {budget} differs from the model at that budget")
    with console.status("timing every export"):
        timings = _milliseconds(exports, tokens)
    for budget, path in paths.items():
        megabytes = sum(file.stat().st_size for file in path.iterdir()) / 1e6
        parameters = sum(p.numel() for p in exports[budget].parameters())
        rows.append(Measured(budget, parameters, megabytes, timings[budget]))

    table = Table(
        "budget K", "parameters", "size", "forward, 256 bytes", title="one model, ten exports", box=None
    )
    for row in rows:
        table.add_row(
            str(row.budget),
            f"{row.parameters / 1e6:.2f} M",
            f"{row.megabytes:.1f} MB",
            f"{row.milliseconds:.1f} ms",
        )
    console.print(table)
    console.print("Every export computes, bit for bit, what the one model computes at that budget.")
    drawing = out / "budgets.png"
    bank = hankel_filters(config.max_length, 32)
    with picture(drawing, columns=3) as (spectrum, shapes, costs):
        filter_spectrum(spectrum, bank)
        filter_shapes(shapes, bank)
        budget_costs(
            costs, [r.budget for r in rows], [r.parameters for r in rows], [r.milliseconds for r in rows]
        )
    console.print(f"picture: {drawing}\nexports: {out / 'exports'}", highlight=False, soft_wrap=True)


def _unused(out: Path) -> Path:
    """`out`, or out-2, out-3, ...: what an earlier run left stays."""
    path = out
    for i in count(2):
        if not path.exists():
            break
        path = out.with_name(f"{out.name}-{i}")
    return path


@torch.inference_mode()
def _milliseconds(models: dict[int, ElasticModel], tokens: torch.Tensor) -> dict[int, float]:
    """The median time of one forward each, the models taking turns."""
    times: dict[int, list[float]] = {budget: [] for budget in models}
    for turn in range(REPEATS + 1):
        for budget, model in models.items():
            start = time.perf_counter()
            model(tokens)
            if turn:  # the first is a warm-up
                times[budget].append(1e3 * (time.perf_counter() - start))
    return {budget: median(found) for budget, found in times.items()}
