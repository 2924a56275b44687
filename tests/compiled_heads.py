"""Run by test_heads.py in a process of its own: torch.compile cannot trace the type checks of the tests."""

import torch
from models import HEADS, LENGTH, inputs, make

from es_ssm import DecisionModel

for kind in HEADS:
    model = make(kind)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for length in (LENGTH, 36, 30):
        x = inputs(kind, length=length)
        shape = x.times.shape if kind is DecisionModel else x.shape
        mask = torch.ones(shape, dtype=torch.bool)
        mask[..., -3:] = False
        for given in (None, mask):
            torch.testing.assert_close(compiled(x, 5, given), model(x, 5, given))
print("equal")
