"""Write the tables of README.md and docs/performance.md anew from the records in results/.

python -m benchmarks.report
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.layer import draw as draw_layer
from benchmarks.model import draw as draw_model
from benchmarks.record import RESULTS

README = RESULTS.parent / "README.md"
PAGE = RESULTS.parent / "docs" / "performance.md"
Record = dict[str, Any]


def last(name: str, on_gpu: bool = False, holds: Callable[[Any], bool] = lambda _: True) -> Record:
    """The newest record that `holds` what is asked for."""
    records = [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]
    fitting = [r for r in records if ("cuda" in r["command"]) == on_gpu and holds(r["measured"])]
    return fitting[-1]


def markdown(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(f"{c:.3g}" if isinstance(c, float) else str(c) for c in cells) + " |"

    header = list(header)
    return "\n".join([line(header), "|" + "---|" * len(header), *map(line, rows)])


def source(record: Record) -> str:
    return f"`{record['command']}`, {record['machine']}, commit {record['commit']}, {record['when'][:10]}."


def spread(found: list[float]) -> str:
    return f"{found[0]:.3g} ({found[1]:.3g} to {found[2]:.3g})"


def long_layer(measured: Any) -> bool:
    return len({row["d"] for row in measured["times"]}) > 1


def long_model(measured: Any) -> bool:
    return any("8192" in row[0] for row in measured["rows"])


def layer(on_gpu: bool = False) -> str:
    record = last("layer", on_gpu, long_layer)
    header = [
        "d",
        "L",
        "K",
        "pass",
        "ms",
        "paper's path, ms",
        "times faster",
        "over its products",
        "block over",
    ]
    rows = [
        [
            *(row[name] for name in ("d", "L", "K", "pass")),
            *(1e3 * row["seconds"][name] for name in ("chunks", "paper")),
            *(spread(row[name]) for name in ("times_faster", "over_floor", "block_over_floor")),
        ]
        for row in record["measured"]["times"]
        if row["K"] in (2, 8, 32)
    ]
    return markdown(header, rows) + "\n\n" + source(record)


def whole_model(on_gpu: bool = False) -> str:
    record = last("model", on_gpu, long_model)
    rows = [
        [kind, name, seconds, spread([middle, low, high])]
        for kind, name, seconds, middle, low, high, _ in record["measured"]["rows"]
    ]
    return markdown(["", "model", "seconds", "over Llama"], rows) + "\n\n" + source(record)


def decode(on_gpu: bool = False) -> str:
    record = last("decode", on_gpu)
    rows = [
        [
            row["model"],
            row["position"],
            round(row["tokens_per_second"]),
            spread(row["times_llama"]),
            spread(row["time_over_position_10"]),
            f"{row['bytes']:,}",
        ]
        for row in record["measured"]["rows"]
    ]
    header = [
        "model",
        "position",
        "tokens a second",
        "times Llama",
        "time over position 10",
        "bytes of state",
    ]
    return markdown(header, rows) + "\n\n" + source(record)


def tiles() -> str:
    record = last("tiles")
    rows = [
        [row["varied"], row["value"], row["d"], row["K"], 1e3 * row["forward"], 1e3 * row["backward"]]
        for row in record["measured"]
    ]
    header = ["varied", "to", "d", "K", "forward, ms", "backward, ms"]
    return markdown(header, rows) + "\n\n" + source(record)


def filters() -> str:
    record = last("filters", holds=lambda rows: any(row["length"] > 100_000 for row in rows))
    methods = ["exact", "paper, float64", "paper, float32", "eigh"]
    found = {(row["length"], row["method"]): row for row in record["measured"]}
    rows = []
    for length in dict.fromkeys(row["length"] for row in record["measured"]):
        cells = [found.get((length, method)) for method in methods]
        rows.append([length, *(f"{c['seconds']:.2g} s, {c['good_channels']}" if c else "" for c in cells)])
    return markdown(["L", *methods], rows) + "\n\n" + source(record)


def goals() -> str:
    """Each goal, beside what the last records say."""
    times = {
        (row["K"], row["pass"]): row
        for row in last("layer")["measured"]["times"]
        if (row["d"], row["L"]) == (512, 2048)
    }
    memory = last("layer")["measured"]["peak_bytes"]
    long = last("model", holds=long_model)["measured"]["rows"]
    ratios = {(row[0], row[1]): row[3] for row in long}
    quick = {row[1]: row[6] for row in long if row[0] == "prefill, L=2048"}
    steps = {(row["model"], row["position"]): row for row in last("decode")["measured"]["rows"]}
    cache = steps["Llama", 2000]["bytes"] / 2000 * 2048
    both = "forward+backward"
    rows: list[tuple[str, list[float], list[float], bool]] = [
        ("sublayer forward, times faster than the paper's path, K=2 / 8 / 32", [2, 3.5, 5],
         [times[k, "forward"]["times_faster"][0] for k in (2, 8, 32)], True),
        ("forward and backward, the same", [2, 3.5, 4],
         [times[k, both]["times_faster"][0] for k in (2, 8, 32)], True),
        ("block forward over its bare products (M_k and FFN), K=32", [1.6],
         [times[32, "forward"]["block_over_floor"][0]], False),
        ("sublayer forward over the products with M_k alone, K=32", [1.6],
         [times[32, "forward"]["over_floor"][0]], False),
        ("peak memory of forward and backward over the paper's path, K=32", [0.2],
         [memory["chunks"] / memory["paper"]], False),
        *(
            (f"prefill over Llama, L={length}, K=2 / 8 / 32", wanted,
             [ratios[f"prefill, L={length}", f"ES-SSM K={k}"] for k in (2, 8, 32)], False)
            for length, wanted in ((2048, [0.40, 0.55, 0.75]), (8192, [0.16, 0.24, 0.33]))
        ),
        ("training step over Llama, K=32 / budget dropout's mix", [1.0, 0.6],
         [ratios["training step, L=2048", f"ES-SSM{which}"] for which in (" K=32", ", mix")], False),
        ("decode, time at position 8000 over 10, K=32", [1.05],
         [steps["ES-SSM K=32", 8000]["time_over_position_10"][0]], False),
        ("decode at position 2000, tokens a second over Llama, K=32 / 2", [2.5, 4.5],
         [steps[f"ES-SSM K={k}", 2000]["times_llama"][0] for k in (32, 2)], True),
        ("decode, bytes of state over Llama's cache at 2048, K=32", [1 / 40],
         [steps["ES-SSM K=32", 2000]["bytes"] / cache], False),
        ("prefill at K=2 over K=32, L=2048", [0.22], [quick["ES-SSM K=2"]], False),
    ]  # fmt: skip
    lines = []
    for what, wanted, found, more_is_better in rows:
        met = [f >= w if more_is_better else f <= w for f, w in zip(found, wanted, strict=True)]
        lines.append(
            [what, " / ".join(f"{w:.3g}" for w in wanted), " / ".join(f"{f:.3g}" for f in found),
             "yes" if all(met) else "no" if not any(met) else "in part"]
        )  # fmt: skip
    used = [last("layer"), last("model", holds=long_model), last("decode")]
    told = "\n".join(f"- {source(record)}" for record in used)
    return markdown(["", "goal", "reached", "met"], lines) + "\n\n" + told


TABLES: dict[str, Callable[[], str]] = {
    "goals": goals,
    "layer": layer,
    "tiles": tiles,
    "model": whole_model,
    "decode": decode,
    "filters": filters,
    "layer on a GPU": lambda: layer(on_gpu=True),
    "model on a GPU": lambda: whole_model(on_gpu=True),
    "decode on a GPU": lambda: decode(on_gpu=True),
}


def main() -> None:
    for page, names in ((PAGE, list(TABLES)), (README, ["goals"])):
        text = page.read_text()
        for name in names:
            place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
            assert place.search(text), f"{page.name} has no place for the table {name!r}"
            text = place.sub(lambda m, name=name: f"{m[1]}\n{TABLES[name]()}\n\n{m[2]}", text)
        page.write_text(text)
    draw_layer(last("layer", holds=long_layer)["measured"]["times"])
    draw_model(last("model", holds=long_model)["measured"]["rows"])


if __name__ == "__main__":
    main()
