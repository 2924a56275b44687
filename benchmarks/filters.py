"""Time and accuracy of the filters against the horizon: `python -m benchmarks.filters [--long]`.

Contestants: the exact method, the paper's subspace iteration in two precisions, and scipy's eigh on the
matrix itself. The error of a channel is |found - exact|, the exact method having been checked against
300-digit arithmetic by the tests; "channels" counts the leading ones found to 1e-6.
"""

import sys
import tracemalloc

import numpy as np
import scipy.linalg
import torch

from benchmarks.record import IMAGES, append, show, timed
from es_ssm.filters import Filters, exact_filters
from es_ssm.plots import BLUE, INK, ORANGE, picture
from es_ssm.subspace import subspace_filters

CHANNELS = 32
GOOD = 1e-6


def by_eigh(length: int) -> Filters:
    q = np.add.outer(np.arange(1, length + 1.0), np.arange(1, length + 1.0))
    values, vectors = scipy.linalg.eigh(2 / (q**3 - q), subset_by_index=(length - CHANNELS, length - 1))
    filters = vectors[:, ::-1].T
    return Filters(filters * np.where(filters[:, :1] < 0, -1.0, 1.0), values[::-1])


METHODS = {
    "exact": lambda length: exact_filters(length, CHANNELS),
    "paper, float64": lambda length: subspace_filters(length, CHANNELS, np.dtype("float64")),
    "paper, float32": lambda length: subspace_filters(length, CHANNELS, np.dtype("float32")),
    "eigh": by_eigh,
}


def main() -> None:
    torch.set_num_threads(1)
    lengths = [128, 512, 2048] + ([8192, 16384, 131_072] if "--long" in sys.argv else [])
    rows = []
    for length in lengths:
        exact = exact_filters(length, CHANNELS).filters
        for name, method in METHODS.items():
            if (name == "eigh" and length > 2048) or (name.startswith("paper") and length > 16384):
                continue
            turns = 3 if length <= 2048 else 1  # the first ones load libraries
            seconds = min(timed({name: lambda: method(length)}, turns)[name])  # noqa: B023  called at once
            found = method(length).filters
            errors = np.linalg.norm(found - exact, axis=1)
            wrong = np.flatnonzero(errors > GOOD)
            good = int(wrong[0]) if len(wrong) else CHANNELS
            rows.append({"length": length, "method": name, "seconds": seconds, "good_channels": good})
        tracemalloc.start()
        exact_filters(length, CHANNELS)
        rows[-1]["exact_peak_megabytes"] = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()

    columns = ["length", "method", "seconds", "good_channels"]
    show(
        f"CPU seconds, and channels of {CHANNELS} right to {GOOD:g}",
        columns,
        [[row[c] for c in columns] for row in rows],
    )
    print(append("filters", rows))
    draw(rows)


def draw(rows: list[dict[str, object]]) -> None:
    colours = dict(zip(METHODS, (BLUE, ORANGE, "#e8b08c", INK), strict=True))
    with picture(IMAGES / "filters.png", 2) as (time_axes, channel_axes):
        for name, colour in colours.items():
            chosen = [row for row in rows if row["method"] == name]
            lengths = [row["length"] for row in chosen]
            time_axes.loglog(
                lengths, [row["seconds"] for row in chosen], "o-", ms=4, color=colour, label=name
            )
            channel_axes.semilogx(lengths, [row["good_channels"] for row in chosen], "o-", ms=4, color=colour)
        ticks = list(dict.fromkeys(row["length"] for row in rows))
        for axes in (time_axes, channel_axes):
            axes.set_xticks(ticks, [str(length) for length in ticks])
            axes.minorticks_off()
        time_axes.set(title="Making 32 filters, one thread", xlabel="horizon L", ylabel="CPU seconds")
        time_axes.legend(frameon=False)
        channel_axes.set(title=f"Channels right to {GOOD:g}", xlabel="horizon L", ylim=(0, CHANNELS + 1))


if __name__ == "__main__":
    main()
