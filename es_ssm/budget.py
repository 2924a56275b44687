"""Budget dropout: which budget each training step runs at (Algorithm 3), and what follows from it."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import inf, log
from typing import Any

import numpy as np

from .errors import instance, shown, whole


class BudgetSampler:
    """Algorithm 3: full budget while warming up and at every `full_every`-th step, else log-uniform.

    `warmup_steps` is the length of the warmup in optimisation steps; `full_every` is the anchor cadence
    (n_full), `math.inf` for none. All micro-batches of a step share one budget, unless `per_micro_batch`:
    then each draws its own, anchors excepted. The generator is the sampler's own, so equal seeds give equal
    sequences whatever else the program draws; `state_dict` and `load_state_dict` resume it exactly.
    """

    def __init__(
        self,
        budgets: Sequence[int],
        *,
        warmup_steps: int = 0,
        full_every: int | float = 8,
        per_micro_batch: bool = False,
        seed: int = 0,
    ) -> None:
        if not isinstance(budgets, Iterable) or isinstance(budgets, str):
            raise ValueError(f"budgets must be a list of whole numbers, got {shown(budgets)}")
        self.budgets = tuple(whole("each of budgets", b, 1) for b in budgets)
        if not self.budgets or list(self.budgets) != sorted(set(self.budgets)):
            raise ValueError(f"budgets must be whole numbers that ascend without repeats, got {self.budgets}")
        self.warmup_steps = whole("warmup_steps", warmup_steps, 0)
        self.full_every = inf if full_every == inf else whole("full_every", full_every, 1)
        self.per_micro_batch = instance("per_micro_batch", per_micro_batch, bool)
        self.seed = whole("seed", seed, 0)
        self._random = np.random.default_rng(self.seed)

    @property
    def full(self) -> int:
        return self.budgets[-1]

    def sample(self, step: int, micro_batches: int = 1) -> list[int]:
        """The budget of each micro-batch of optimisation step `step`, which counts from 0."""
        whole("step", step, 0)
        whole("micro_batches", micro_batches, 1)
        if step < self.warmup_steps or self.is_anchor(step):
            return [self.full] * micro_batches
        if self.per_micro_batch:
            return [self._draw() for _ in range(micro_batches)]
        return [self._draw()] * micro_batches

    def is_anchor(self, step: int) -> bool:
        return self.full_every != inf and step % self.full_every == 0

    def _draw(self) -> int:
        smallest = self.budgets[0]
        target = smallest * (self.full / smallest) ** self._random.random()
        return min(self.budgets, key=lambda budget: abs(budget - target))

    def state_dict(self) -> dict[str, Any]:
        """The generator's place in its sequence, and what it draws from, as JSON can hold them."""
        return {"budgets": list(self.budgets), "generator": self._random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(instance("state", state, dict)) != {"budgets", "generator"}:
            raise ValueError(f"state must have the keys 'budgets' and 'generator', got {shown(list(state))}")
        if state["budgets"] != list(self.budgets):
            raise ValueError(
                f"state must be that of a sampler of {list(self.budgets)}, got {shown(state['budgets'])}"
            )
        try:
            self._random.bit_generator.state = state["generator"]
        except (TypeError, ValueError, KeyError):
            raise ValueError(
                f"generator of state must be what state_dict gave, got {shown(state['generator'])}"
            ) from None

    def draw_probabilities(self) -> dict[int, float]:
        """q: the probability of each budget at a step that is neither warmup nor anchor."""
        if len(self.budgets) == 1:
            return {self.full: 1.0}
        smallest = self.budgets[0]
        borders = [
            log((a + b) / (2 * smallest)) / log(self.full / smallest) for a, b in pairwise(self.budgets)
        ]
        edges = [0.0, *borders, 1.0]
        return {budget: high - low for budget, (low, high) in zip(self.budgets, pairwise(edges), strict=True)}

    def probabilities(self) -> dict[int, float]:
        """The long-run probability of each budget after warmup, anchors counted."""
        anchors = 1 / self.full_every
        found = {budget: (1 - anchors) * q for budget, q in self.draw_probabilities().items()}
        found[self.full] += anchors
        return found

    def inclusion(self, channel: int) -> float:
        """p_k = P(K_train >= k): how often channel k (from 1) takes part, and so gets a gradient."""
        whole("channel", channel, 1, self.full)
        return sum(p for budget, p in self.probabilities().items() if budget >= channel)

    def expected(self, cost: Callable[[int], float]) -> float:
        """The mean of `cost(budget)` over training after warmup: with FLOPs, the expected active compute."""
        return sum(p * cost(budget) for budget, p in self.probabilities().items())
