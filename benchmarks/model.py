"""A whole language model against those of transformers.

    python -m benchmarks.model [--long] [--device cuda]

All have the same depth and, at K = 32, the same number of parameters within 5 %; one checkpoint of ours
serves the other budgets. Prefill: bfloat16 weights, batch 1, logits of every position. Training: float32
weights, bfloat16 autocast, forward, backward and AdamW; "mix" is the mean over the budgets as budget dropout
draws them. With --long, L = 8192 as well, for prefill.
"""

import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.record import IMAGES, append, device_asked_for, ratio, show, timed
from benchmarks.rivals import RIVALS, es_ssm, size
from es_ssm import BudgetSampler
from es_ssm.model import PAPER_BUDGETS
from es_ssm.plots import BLUE, INK, ORANGE, picture

LAYERS = 4
BUDGETS = (2, 8, 32)
Call = Callable[[], object]


def contestants(length: int) -> dict[str, nn.Module]:
    ours = es_ssm(LAYERS, length)
    return {"ES-SSM": ours, **{name: build(LAYERS, length, size(ours)) for name, build in RIVALS.items()}}


def prefill(length: int, repeats: int, device: str) -> tuple[dict[str, list[float]], dict[str, int]]:
    tokens = torch.randint(2, 258, (1, length), device=device)
    calls: dict[str, Call] = {}
    models = {name: model.eval().to(device, torch.bfloat16) for name, model in contestants(length).items()}

    def reader(name: str, budget: int | None = None) -> Call:
        def run() -> None:
            with torch.no_grad():
                models[name](tokens, budget) if budget else models[name](tokens, use_cache=False)

        return run

    for budget in BUDGETS:
        calls[f"ES-SSM K={budget}"] = reader("ES-SSM", budget)
    calls |= {name: reader(name) for name in RIVALS}
    return timed(calls, repeats, device), {name: size(model) for name, model in models.items()}


def training(
    length: int, repeats: int, device: str, budgets: Sequence[int], rivals: Sequence[str]
) -> dict[str, list[float]]:
    tokens = torch.randint(2, 258, (1, length + 1), device=device)
    models = {name: model.train().to(device) for name, model in contestants(length).items()}

    def trainer(name: str, budget: int | None = None) -> Call:
        model = models[name]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

        def run() -> None:
            with torch.autocast(device, dtype=torch.bfloat16):
                if budget:
                    logits = model(tokens[:, :-1], budget)
                else:
                    logits = model(tokens[:, :-1], use_cache=False).logits
                loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return run

    calls = {f"ES-SSM K={budget}": trainer("ES-SSM", budget) for budget in budgets}
    return timed(calls | {name: trainer(name) for name in rivals}, repeats, device)


def mixed(times: dict[str, list[float]]) -> list[float]:
    """The mean step under budget dropout, turn by turn."""
    sampler = BudgetSampler(PAPER_BUDGETS)
    turns = range(len(times["Llama"]))
    return [sampler.expected(lambda k, turn=turn: times[f"ES-SSM K={k}"][turn]) for turn in turns]


def table(kind: str, times: dict[str, list[float]]) -> list[list[object]]:
    return [
        [kind, name, median(found), *ratio(times["Llama"], found), *ratio(times["ES-SSM K=32"], found)[:1]]
        for name, found in times.items()
    ]


def draw(rows: list[list[Any]]) -> None:
    kinds = list(dict.fromkeys(row[0] for row in rows))
    with picture(IMAGES / "model.png", len(kinds), height=3.2) as panels:
        for axes, kind in zip(panels, kinds, strict=True):
            chosen = [row for row in rows if row[0] == kind and row[1] not in ("Mamba-2",)]
            colours = [BLUE if "ES-SSM" in row[1] else ORANGE for row in chosen]
            axes.barh([row[1] for row in chosen], [row[3] for row in chosen], color=colours)
            axes.axvline(1, color=INK, lw=0.8)
            axes.invert_yaxis()
            axes.grid(axis="y", alpha=0)
            axes.set(title=kind, xlabel="CPU time over Llama's")


def main() -> None:
    device = device_asked_for()
    rows: list[list[Any]] = []
    found, sizes = prefill(2048, 5, device)
    rows += table("prefill, L=2048", found)
    if "--long" in sys.argv:
        rows += table("prefill, L=8192", prefill(8192, 3, device)[0])
    steps = training(2048, 3, device, PAPER_BUDGETS, list(RIVALS))
    steps["ES-SSM, mix"] = mixed(steps)
    rows += table("training step, L=2048", steps)
    if "--long" in sys.argv:
        rows += table("training step, L=8192", training(8192, 1, device, BUDGETS, ["Llama", "GPT-NeoX"]))
    columns = ["", "model", "CPU s", "over Llama", "quartile", "quartile", "over K=32"]
    show(f"{sizes} parameters, {LAYERS} layers", columns, rows)
    print(append("model", {"parameters": sizes, "columns": columns, "rows": rows}))
    if device == "cpu":
        draw(rows)


if __name__ == "__main__":
    main()
