"""Training in two processes gives what training in one does."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_train_as_one(kind, tmp_path):
    script = Path(__file__).with_name("parallel.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, script, kind, str(rank), tmp_path],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        found, problem = rank.communicate(timeout=120)
        assert found == "equal\n", problem
