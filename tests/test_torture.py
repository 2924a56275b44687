"""Long random runs, outside the ordinary suite: `make torture`, some minutes on two cores."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from models import HEADS, inputs, make

from es_ssm import export, load
from es_ssm.checkpoint import CONFIG_FILE
from es_ssm.export import budget_name
from es_ssm.filters import FILTER_METHODS

pytestmark = pytest.mark.torture


def any_budget(draw: random.Random, most: tuple[int, ...]) -> int | tuple[int, ...]:
    return draw.choice([draw.randint(1, min(most)), tuple(draw.randint(1, each) for each in most)])


@pytest.mark.parametrize("seed", range(24))
def test_random_models_equal_their_exports_bit_for_bit(seed, tmp_path):
    draw = random.Random(seed)
    kind, length = draw.choice(HEADS), draw.choice([3, 10, 33, 64, 100, draw.randint(3, 400)])
    layers = draw.randint(1, 4)
    model = make(
        kind,
        seed,
        d_model=draw.randint(2, 100),
        n_layers=layers,
        n_filters=tuple(draw.randint(1, min(length, 64)) for _ in range(layers)),
        max_length=length,
        gate=draw.choice(["adaptive", "channel", "uniform"]),
        filter_method=draw.choice(FILTER_METHODS),
        budgets=None,
    ).to(draw.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16]))
    given = []
    for _ in range(2):
        x = inputs(kind, batch=draw.randint(1, 4), length=draw.randint(3, length))
        given.append(x if torch.is_tensor(x) else x._replace(**in_the_precision_of(model, x)))
    budgets = [model.budgets[-1], *(any_budget(draw, model.config.layer_filters) for _ in range(4))]
    named = {budget_name(budget): budget for budget in budgets}
    for path in export(model, tmp_path / "out", budgets):
        budget = named.pop(path.name)
        again = load(path)
        smaller = any_budget(draw, again.config.layer_filters)
        (once_more,) = export(again, tmp_path / "again" / path.name, [smaller])
        smallest = load(once_more)
        for x in given:
            assert torch.equal(again(x), model(x, budget=budget))
            assert torch.equal(smallest(x), model(x, budget=smaller))
    assert not named


def in_the_precision_of(model, x):
    dtype = next(model.parameters()).dtype
    return {name: getattr(x, name).to(dtype) for name in ("returns", "states", "actions")}


READER = """
import sys, warnings
import numpy as np
from es_ssm.cache import cached_arrays
warnings.simplefilter("ignore")  # damage is warned of
draw = np.random.default_rng(int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    key = int(draw.integers(6))
    made = {"values": np.random.default_rng(key).standard_normal((key + 1, 20_000)), "key": np.arange(key)}
    found = cached_arrays({"key": key}, lambda: made)
    assert found.keys() == made.keys()
    assert all(np.array_equal(found[name], made[name]) for name in made)
"""


@pytest.mark.parametrize("seed", range(2))
def test_a_cache_that_many_processes_use_and_something_damages(seed, tmp_path):
    draw, folder = random.Random(seed), tmp_path / "cache"
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(10 * seed + i), "3000"],
            env={**os.environ, "ES_SSM_CACHE": str(folder)},
        )
        for i in range(5)
    ]
    while any(reader.poll() is None for reader in readers):
        time.sleep(0.02)
        for path in draw.sample(found := sorted(folder.glob("[!.]*")), min(1, len(found))):
            with suppress(FileNotFoundError):
                damage(draw, path, tmp_path / "damaged")
    assert [reader.returncode for reader in readers] == [0] * len(readers)
    assert len(list(folder.iterdir())) <= 6  # and nothing half-written


def damage(draw: random.Random, path: Path, work: Path) -> None:
    """Remove the file, cut it short, or change a byte; not in place, where a reader would be killed."""
    data = bytearray(path.read_bytes())
    position = draw.randrange(len(data))
    way = draw.choice(["remove", "cut", "change"])
    if way == "remove":
        path.unlink()
        return
    if way == "cut":
        del data[position:]
    else:
        data[position] ^= 1 << draw.randrange(8)
    work.write_bytes(data)
    work.replace(path)


WRITER = """
import sys
from itertools import count
from es_ssm import LanguageModel, ModelConfig, export, truncate
model = LanguageModel(ModelConfig(d_model=128, n_layers=4, n_filters=16, max_length=64))
print("ready", flush=True)
for i in count():
    export(model, f"{sys.argv[1]}/{i}", model.budgets)
"""


@pytest.mark.parametrize("seed", range(12))
def test_a_killed_export_leaves_whole_models_only(seed, tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout.readline() == "ready\n"
    time.sleep(random.Random(seed).uniform(0.05, 2))
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    for folder in tmp_path.glob("*/[!.]*"):
        load(folder)
    assert all((path.parent.name.startswith((".", "budget-"))) for path in tmp_path.rglob(CONFIG_FILE))
