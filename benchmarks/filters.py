"""Time and accuracy of the filters against the horizon: `python -m benchmarks.filters [--long]`.

Contestants: the exact method, the paper's subspace iteration in two precisions, and scipy's eigh on the
matrix itself. The error of a channel is |found - exact|, the exact method having been checked against
300-digit arithmetic by the tests; "channels" counts the leading ones found to 1e-6.
"""

import sys
import time
import tracemalloc

import numpy as np
import scipy.linalg
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.record import append
from es_ssm.filters import Filters, exact_filters
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
            start = time.process_time()
            found = method(length).filters
            seconds = time.process_time() - start
            errors = np.linalg.norm(found - exact, axis=1)
            wrong = np.flatnonzero(errors > GOOD)
            good = int(wrong[0]) if len(wrong) else CHANNELS
            rows.append({"length": length, "method": name, "seconds": seconds, "good_channels": good})
        tracemalloc.start()
        exact_filters(length, CHANNELS)
        rows[-1]["exact_peak_megabytes"] = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()

    table = Table("L", "method", "CPU seconds", f"channels of {CHANNELS} to {GOOD:g}")
    for row in rows:
        table.add_row(str(row["length"]), row["method"], f"{row['seconds']:.3f}", str(row["good_channels"]))
    Console().print(table)
    print(append("filters", rows))


if __name__ == "__main__":
    main()
