"""Tokens a second and bytes of state, by position: `python -m benchmarks.decode [--device cuda]`.

Contestants: an ES-SSM of K = 32 and its export of K = 2, against Llama with its cache, of as many parameters
and layers as the former, all in bfloat16, batch 1. Each is brought to the position by a prompt of random
tokens, then timed over 16 steps at a time, one of which moves our states to their next chunk.
"""

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.record import IMAGES, append, device_asked_for, ratio, show, timed
from benchmarks.rivals import es_ssm, llama, size
from es_ssm import truncate
from es_ssm.plots import BLUE, INK, ORANGE, picture

LAYERS, LENGTH = 4, 8192
POSITIONS = (10, 1000, 2000, 8000)
STEPS, TURNS = 16, 9
Call = Callable[[], object]


def our_stepper(model: Any, prompt: torch.Tensor) -> tuple[Call, int]:
    state, token = model.prefill(prompt), prompt[:, -1]
    return lambda: model.step(token, state), state.nbytes


def their_stepper(model: Any, prompt: torch.Tensor) -> tuple[Call, int]:
    cache = model(prompt, use_cache=True).past_key_values
    token = prompt[:, -1:]
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    return lambda: model(token, past_key_values=cache, use_cache=True), held


def many(call: Call) -> Call:
    def run() -> None:
        for _ in range(STEPS):
            call()

    return run


def main() -> None:
    device = device_asked_for()
    large = es_ssm(LAYERS, LENGTH).eval().to(device, torch.bfloat16)
    models = {
        "ES-SSM K=32": (large, our_stepper),
        "ES-SSM K=2": (truncate(large, 2), our_stepper),
        "Llama": (llama(LAYERS, LENGTH, size(large)).eval().to(device, torch.bfloat16), their_stepper),
    }
    calls: dict[str, Call] = {}
    held: dict[str, int] = {}
    with torch.no_grad():
        for position in POSITIONS:
            prompt = torch.randint(2, 258, (1, position), device=device)
            for name, (model, stepper) in models.items():
                label = f"{name} at {position}"
                calls[label], held[label] = stepper(model, prompt)
        times = timed({label: many(call) for label, call in calls.items()}, TURNS, device)
    rows = []
    for position in POSITIONS:
        for name in models:
            label = f"{name} at {position}"
            found = times[label]
            rows.append(
                {
                    "model": name,
                    "position": position,
                    "tokens_per_second": STEPS / median(found),
                    "times_llama": ratio(found, times[f"Llama at {position}"]),
                    "time_over_position_10": ratio(times[f"{name} at 10"], found),
                    "bytes": held[label],
                }
            )
    columns = list(rows[0])
    show(
        f"{LAYERS} layers, bfloat16, one thread",
        columns,
        [[row[c][0] if isinstance(row[c], tuple) else row[c] for c in columns] for row in rows],
    )
    print(append("decode", {"parameters": {n: size(m) for n, (m, _) in models.items()}, "rows": rows}))
    if device == "cpu":
        draw(rows)


def draw(rows: list[dict[str, Any]]) -> None:
    with picture(IMAGES / "decode.png", 2) as (speed, memory):
        for name, colour in (("ES-SSM K=2", BLUE), ("ES-SSM K=32", INK), ("Llama", ORANGE)):
            chosen = [row for row in rows if row["model"] == name]
            positions = [row["position"] for row in chosen]
            speed.semilogx(
                positions, [r["tokens_per_second"] for r in chosen], "o-", ms=4, color=colour, label=name
            )
            memory.loglog(positions, [r["bytes"] / 1e6 for r in chosen], "o-", ms=4, color=colour)
        speed.set(title="Decoding, one thread, bfloat16", xlabel="position", ylabel="tokens a second", ylim=0)
        speed.legend(frameon=False)
        memory.set(title="State", xlabel="position", ylabel="megabytes")


if __name__ == "__main__":
    main()
