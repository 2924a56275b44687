"""How long chunks and slabs should be (`Tiles` in chunks.py): `python -m benchmarks.tiles`.

Forward and backward of the mixing alone, bfloat16, one of the three numbers varied at a time.
"""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.record import append, device_asked_for, show, timed
from es_ssm import chunks
from es_ssm.bank import FilterBank
from es_ssm.mixing import mix_backward, mix_forward

LENGTH = 2048
CASES = [  # what is varied, its values, width, budgets
    ("chunk", (16, 32, 64), 512, (2, 8, 32)),
    ("slab", (128, 256, 512, 1024, 2048), 512, (32,)),
    ("slab", (128, 256, 512, 1024, 2048), 1024, (32,)),
    ("group", (4, 8, 16), 512, (32,)),
]


def cut(tiles: chunks.Tiles, call: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        chunks.CPU = tiles
        call()

    return run


def measure(name: str, values: tuple[int, ...], width: int, budget: int) -> list[dict[str, Any]]:
    usual, bank = chunks.CPU, FilterBank(LENGTH)
    u, gates = torch.randn(1, LENGTH, width), torch.rand(1, LENGTH, budget)
    projections, grad = torch.randn(width, 32, width), torch.randn(1, LENGTH, width).bfloat16()
    given = u, gates, projections, bank, torch.bfloat16
    calls = {}
    for value in values:
        changed = {"slab": value, "backward_slab": value} if name == "slab" else {name: value}
        tiles = usual._replace(**changed)
        calls[f"forward {value}"] = cut(tiles, partial(mix_forward, *given))
        calls[f"backward {value}"] = cut(tiles, partial(mix_backward, grad, *given))
    times = timed(calls, 5)
    chunks.CPU = usual
    return [
        {
            "varied": name,
            "value": value,
            "d": width,
            "K": budget,
            **{way: median(times[f"{way} {value}"]) for way in ("forward", "backward")},
        }
        for value in values
    ]


def main() -> None:
    device_asked_for()  # one thread
    rows = [
        row
        for name, values, width, budgets in CASES
        for k in budgets
        for row in measure(name, values, width, k)
    ]
    show("Seconds of CPU time", list(rows[0]), [list(row.values()) for row in rows])
    print(append("tiles", rows))


if __name__ == "__main__":
    main()
