"""The spectral layer against the paper's path and its own floor.

    python -m benchmarks.layer [--long] [--device cuda]

Contestants, each with the gate, in bfloat16 autocast over float32 parameters, forward alone and forward with
backward:

    chunks   the layer as it is
    paper    batched FFT of length 2L, gate, one contraction (appendix C.2 and C.4)
    floor    the products with M_k alone, on operands that are bfloat16 already

and for a whole block the floor with the FFN's two products as well. Peak memory is that of a fresh process,
beyond what it had before. With --long, all ten budgets, widths and lengths; else one of each.
"""

import sys
from collections.abc import Callable
from math import sqrt
from statistics import median

import torch
import torch.nn.functional as F

from benchmarks.record import IMAGES, append, device_asked_for, peak_memory, ratio, resident, show, timed
from es_ssm.bank import FilterBank
from es_ssm.layer import SpectralLayer
from es_ssm.mix_operator import mix
from es_ssm.mixing import mix_plain
from es_ssm.model import PAPER_BUDGETS, Block, ModelConfig
from es_ssm.plots import BLUE, INK, ORANGE, picture

CHANNELS = 32
PATHS = {"chunks": mix, "paper": mix_plain}
Call = Callable[[], object]
Forward = Callable[[torch.Tensor, int], torch.Tensor]


def block_of(width: int, length: int) -> Block:
    config = ModelConfig(
        d_model=width, n_layers=1, n_filters=CHANNELS, max_length=length, dropout=0.0, drop_path=0.0
    )
    return Block(config, 0, FilterBank(length))


def layer_by(path: str, layer: SpectralLayer) -> Forward:
    """The layer, its mixing done by one of the PATHS."""

    def forward(u: torch.Tensor, budget: int) -> torch.Tensor:
        gates = layer.gate(u, budget) / sqrt(budget)
        return PATHS[path](u, gates, layer.projections, layer.bank, torch.bfloat16)

    return forward


def runner(module: torch.nn.Module, forward: Forward, u: torch.Tensor, budget: int, backward: bool) -> Call:
    def run() -> None:
        with torch.autocast(u.device.type, dtype=torch.bfloat16), torch.set_grad_enabled(backward):
            x = u.clone().requires_grad_(backward)
            out = forward(x, budget)
        if backward:
            module.zero_grad()
            out.backward(torch.ones_like(out))

    return run


def floor(width: int, length: int, budget: int, backward: bool, ffn: bool, device: str) -> Call:
    """Each product as one call, on random operands."""
    shapes = [(budget * width, width)] + ([(width, 4 * width), (4 * width, width)] if ffn else [])
    operands = [
        (
            torch.randn(length, inner).to(device, torch.bfloat16),
            torch.randn(outer, inner).to(device, torch.bfloat16),
        )
        for inner, outer in shapes
    ]

    def run() -> None:
        for x, weight in operands:
            out = F.linear(x, weight)
            if backward:
                out @ weight
                out.T @ x

    return run


def measure(width: int, length: int, budget: int, repeats: int, device: str) -> list[dict[str, object]]:
    block, u, rows = block_of(width, length).to(device), torch.randn(1, length, width).to(device), []
    layer = block.spectral
    for backward in (False, True):
        times = timed(
            {
                "chunks": runner(layer, layer_by("chunks", layer), u, budget, backward),
                "paper": runner(layer, layer_by("paper", layer), u, budget, backward),
                "floor": floor(width, length, budget, backward, False, device),
                "block": runner(block, block, u, budget, backward),
                "block floor": floor(width, length, budget, backward, True, device),
            },
            repeats,
            device,
        )
        rows.append(
            {
                "d": width,
                "L": length,
                "K": budget,
                "pass": "forward+backward" if backward else "forward",
                "seconds": {name: median(found) for name, found in times.items()},
                "times_faster": ratio(times["chunks"], times["paper"]),
                "over_floor": ratio(times["floor"], times["chunks"]),
                "block_over_floor": ratio(times["block floor"], times["block"]),
            }
        )
    return rows


def memory(path: str, width: int, length: int, budget: int) -> None:
    """Print what forward and backward of one layer add to a process that has its parameters already."""
    layer = block_of(width, length).spectral
    forward = layer_by(path, layer)
    runner(layer, forward, torch.randn(1, 64, width), budget, True)()  # gradients, libraries, forms
    before = resident(peak=False)
    runner(layer, forward, torch.randn(1, length, width), budget, True)()
    print(resident(peak=True) - before)


def draw(rows: list[dict[str, object]]) -> None:
    chosen = [row for row in rows if row["d"] == 512 and row["L"] == 2048]
    with picture(IMAGES / "layer.png", 2) as panels:
        for axes, kind in zip(panels, ("forward", "forward+backward"), strict=True):
            of_kind = [row for row in chosen if row["pass"] == kind]
            for name, colour in (("paper", ORANGE), ("chunks", BLUE), ("floor", INK)):
                values = [1e3 * row["seconds"][name] for row in of_kind]
                axes.loglog([row["K"] for row in of_kind], values, "o-", ms=4, color=colour, label=name)
            axes.set(title=f"{kind}, d=512, L=2048, bfloat16", xlabel="budget K", ylabel="CPU ms")
            axes.set_xticks(ticks := [row["K"] for row in of_kind], [str(k) for k in ticks], minor=False)
            axes.minorticks_off()
            axes.legend(frameon=False)


def main() -> None:
    if sys.argv[1:2] == ["memory"]:
        path, *numbers = sys.argv[2:]
        return memory(path, *map(int, numbers))
    device = device_asked_for()
    long = "--long" in sys.argv
    widths, lengths = ((256, 512, 1024), (512, 2048, 8192)) if long else ((512,), (2048,))
    rows = []
    for width in widths:
        for length in lengths:
            heavy = width * length > 2**20
            for budget in PAPER_BUDGETS if long and not heavy else (2, 8, 32):
                rows += measure(width, length, budget, 3 if heavy else 7, device)
                print(".", end="", flush=True)
    print()
    bytes_used = {path: peak_memory("benchmarks.layer", "memory", path, 512, 2048, 32) for path in PATHS}
    columns = [
        "d",
        "L",
        "K",
        "pass",
        "chunks ms",
        "paper ms",
        "times faster",
        "over floor",
        "block over floor",
    ]
    show(
        "Medians; quartiles in the record",
        columns,
        [
            [
                *(row[name] for name in columns[:4]),
                *(1e3 * row["seconds"][name] for name in PATHS),
                *(row[name][0] for name in ("times_faster", "over_floor", "block_over_floor")),
            ]
            for row in rows
        ],
    )
    share = bytes_used["chunks"] / bytes_used["paper"]
    print(f"peak memory of forward+backward, K=32, d=512, L=2048: {bytes_used}, ratio {share:.3f}")
    print(append("layer", {"times": rows, "peak_bytes": bytes_used}))
    if device == "cpu":
        draw(rows)
    return None


if __name__ == "__main__":
    main()
