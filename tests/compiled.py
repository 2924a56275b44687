"""Run by test_mixing.py in a process of its own: torch.compile cannot trace the type checks of the tests."""

import copy
import sys

import torch

from es_ssm.bank import FilterBank
from es_ssm.model import Block, ModelConfig

config = ModelConfig(d_model=16, n_layers=1, n_filters=8, max_length=256, dropout=0.0)
block = Block(config, 0, FilterBank(256))
with torch.no_grad():
    block.spectral.projections.normal_(std=0.2)
twin = copy.deepcopy(block)
compiled = torch.compile(block, fullgraph=True, backend=sys.argv[1])
for budget in (3, 8):
    for steps in (200, 256):
        x = torch.randn(2, steps, 16)
        expected, found = twin(x, budget), compiled(x, budget)
        torch.testing.assert_close(found, expected)
        expected.square().sum().backward()
        found.square().sum().backward()
for ours, theirs in zip(block.parameters(), twin.parameters(), strict=True):
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
print("equal")
