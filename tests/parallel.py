"""Run by test_parallel.py, one process a rank: a step of training under DDP or FSDP equals one without."""

import copy
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from es_ssm import LanguageModel, ModelConfig


def step(model: torch.nn.Module, tokens: torch.Tensor, budget: int) -> None:
    logits = model(tokens[:, :-1], budget)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()


def main(kind: str, rank: int, folder: str) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(0)
    config = ModelConfig(d_model=16, n_layers=2, n_filters=12, max_length=100, dropout=0, drop_path=0)
    alone = LanguageModel(config)
    with torch.no_grad():
        for block in alone.backbone.blocks:
            block.spectral.projections.normal_(std=0.2)
    together = copy.deepcopy(alone)
    if kind == "ddp":
        # a budget leaves parameters whole, with zeros for the removed channels: none goes unused
        together = DistributedDataParallel(together)
    else:
        for block in together.backbone.blocks:
            fully_shard(block)
        fully_shard(together)
    tokens = torch.randint(2, 258, (4, 91))
    for budget in (12, 3):
        step(alone, tokens, budget)
        step(together, tokens[2 * rank : 2 * rank + 2], budget)
    for (name, expected), found in zip(alone.named_parameters(), together.parameters(), strict=True):
        whole = found.full_tensor() if kind == "fsdp" else found
        torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-5, msg=name)
    dist.destroy_process_group()
    print("equal")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
