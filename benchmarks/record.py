"""What every benchmark shares: single-thread CPU time, interleaving, and a record of the circumstances."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent.parent / "results"
PACKAGES = ("torch", "numpy", "scipy", "transformers")
IMAGES = Path(__file__).parent.parent / "docs" / "images"


def append(name: str, measured: Any) -> Path:
    """Add one line to results/NAME.jsonl: what was measured, when, where, with what."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.jsonl"
    line = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **circumstances(),
        "measured": measured,
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    return path


def circumstances() -> dict[str, Any]:
    import torch

    return {
        "command": " ".join(["python", "-m", _module(), *sys.argv[1:]]),
        "commit": _git("rev-parse", "--short", "HEAD")
        + ("+" if _git("status", "--porcelain", "--", ":/", ":!/results", ":!/docs") else ""),
        "machine": torch.cuda.get_device_name() if "cuda" in sys.argv else _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES if find_spec(package)},
    }


def device_asked_for() -> str:
    """`--device cuda`, or the CPU, on one thread."""
    import torch

    torch.set_num_threads(1)
    return sys.argv[sys.argv.index("--device") + 1] if "--device" in sys.argv else "cpu"


def timed(
    contestants: Mapping[str, Callable[[], object]], repeats: int, device: str = "cpu"
) -> dict[str, list[float]]:
    """Seconds of each call, the contestants taking turns, after one turn to warm up.

    Of CPU time, which is all there is on one thread; of the clock, to the end of its kernels, on a GPU.
    """
    import torch

    on_gpu = device != "cpu"
    now = time.perf_counter if on_gpu else time.process_time
    finish = torch.cuda.synchronize if on_gpu else lambda: None
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):
        for name, call in contestants.items():
            finish()
            start = now()
            call()
            finish()
            if turn:
                times[name].append(now() - start)
    return times


def ratio(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Theirs over ours, turn by turn: the median and the quartiles."""
    each = sorted(b / a for a, b in zip(ours, theirs, strict=True))
    return median(each), each[len(each) // 4], each[(3 * len(each)) // 4]


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on the terminal; numbers to three digits."""
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(f"{x:.3g}" if isinstance(x, float) else str(x) for x in row))
    console = Console()
    console.width = max(console.width, 120)
    console.print(table)


def peak_memory(module: str, *arguments: object) -> int:
    """Bytes that `python -m module ARGUMENTS` says it used at most: a fresh process has nothing left over."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=RESULTS.parent)
    return int(found.stdout.split()[-1])


def resident(peak: bool) -> int:
    """Bytes of this process in memory, now or at most so far."""
    name = "VmHWM:" if peak else "VmRSS:"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise OSError("/proc/self/status does not say how much memory is used")


def _module() -> str:
    spec = sys.modules["__main__"].__spec__
    return spec.name if spec else Path(sys.argv[0]).stem


def _git(*arguments: str) -> str:
    found = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    return found.stdout.strip()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
