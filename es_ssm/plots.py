"""Pictures. matplotlib is optional and imported late."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .errors import optional
from .files import new_file
from .filters import Filters

INK, BLUE, ORANGE = "#333333", "#2466a8", "#d9722e"


@contextmanager
def picture(path: Path, columns: int, height: float = 3.6) -> Iterator[list[Any]]:
    """Axes side by side, written to `path` when the block ends."""
    matplotlib = optional("matplotlib", "plot")
    matplotlib.use("agg")
    pyplot = optional("matplotlib.pyplot", "plot")
    style = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": INK,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "font.size": 9,
    }
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(1, columns, figsize=(4.4 * columns, height), layout="constrained")
        yield list(np.atleast_1d(axes))
        with new_file(path) as work:
            figure.savefig(work, dpi=140)
        pyplot.close(figure)


def filter_spectrum(axes: Any, bank: Filters) -> None:
    """Eigenvalues on a log scale: the order that makes a prefix meaningful."""
    axes.semilogy(np.arange(1, len(bank.eigenvalues) + 1), bank.eigenvalues, "o-", ms=3, color=BLUE)
    axes.set(title="Hankel eigenvalues", xlabel="channel k", ylabel="$\\sigma_k$")


def filter_shapes(axes: Any, bank: Filters, channels: Sequence[int] = (1, 2, 4, 8)) -> None:
    """A few filters over time."""
    lags = np.arange(1, bank.filters.shape[1] + 1)
    for i, k in enumerate(channels):
        axes.semilogx(lags, bank.filters[k - 1], label=f"k = {k}", color=BLUE, alpha=1 - 0.22 * i)
    axes.set(title="Spectral channels", xlabel="lag + 1", ylabel="$\\phi_k$")
    axes.legend(frameon=False)


def budget_costs(
    axes: Any, budgets: Sequence[int], parameters: Sequence[int], milliseconds: Sequence[float]
) -> None:
    """Parameters and latency of every export."""
    ticks = np.arange(len(budgets))
    axes.bar(ticks, np.asarray(parameters) / 1e6, color=BLUE, alpha=0.8)
    axes.set(title="One model, ten exports", xlabel="budget K", ylabel="parameters (millions)")
    axes.set_xticks(ticks, [str(b) for b in budgets])
    axes.yaxis.label.set_color(BLUE)
    axes.grid(axis="x", alpha=0)
    right = axes.twinx()
    right.plot(ticks, milliseconds, "o-", color=ORANGE, ms=4)
    right.set_ylabel("forward pass (ms)", color=ORANGE)
    right.set_ylim(0)
    right.grid(alpha=0)
    right.spines["right"].set_visible(True)
