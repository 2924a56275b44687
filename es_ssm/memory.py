"""What a spectral layer remembers of a stream, so that one more token costs the same wherever it comes.

The same chunks as in chunks.py, filled one token at a time: the state before the current chunk, in float64,
and the chunk's inputs so far. A token's features are its row of the chunk's matrix times both. Chunks end
where the horizon ends, so the first one may begin with zeros.

Where no state space is accurate (many channels over a short horizon; filters that are mostly noise) the
chunk is the whole horizon and the rows are the filters themselves: exact, at a cost that grows with time.
"""

import copy
from collections import deque
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from .bank import FilterBank
from .chunks import in_chunks, is_accurate, run
from .conv import full_precision, real

CHUNK = 16
SLAB = 64  # chunks whose states exist at one time while a prompt is skimmed


class Chunk(NamedTuple):
    """The state before a chunk, and its inputs: zeros where none has come yet."""

    state: Float64[Tensor, "B n D"]
    inputs: Float[Tensor, "B T D"]


class Memory:
    """One layer's, at one budget, for a batch of streams. It changes in place.

    It can go back `rollback` tokens at any time: so many chunks are kept beside the current one.
    """

    def __init__(
        self, bank: FilterBank, budget: int, batch: int, like: Float[Tensor, "*any D"], rollback: int
    ) -> None:
        self.bank, self.budget, self.position = bank, budget, 0
        self.by_state = bank.length > CHUNK + budget and is_accurate(bank, budget, CHUNK)
        self.chunk = CHUNK if self.by_state else bank.length
        size = len(bank.chunked(budget, CHUNK, real(like)).advance) if self.by_state else 0
        state = like.new_zeros(batch, size, like.shape[-1], dtype=torch.float64)
        self.current = Chunk(state, like.new_zeros(batch, self.chunk, like.shape[-1]))
        self.older: deque[Chunk] = deque(maxlen=-(-rollback // self.chunk))

    @property
    def zeros(self) -> int:
        """How many come before the first token, so that chunks end where the horizon ends."""
        return -self.bank.length % self.chunk

    @property
    def index(self) -> int:
        """Where in its chunk the next token goes."""
        return (self.zeros + self.position) % self.chunk

    @property
    def room(self) -> int:
        """How many tokens the current chunk has left."""
        return self.chunk - self.index

    def step(self, u: Float[Tensor, "B m D"], gates: Float[Tensor, "B m K"]) -> Float[Tensor, "B m KD"]:
        """The gated features of m more tokens, no more than there is room for."""
        first, last = self.index, self.index + u.shape[1]
        self.current.inputs[:, first:last] = u
        with full_precision(u):
            make = self._by_state if self.by_state else self._by_taps
            gated = make(slice(first, last), real(gates))
            self._move(u.shape[1])
        return gated

    def skim(self, u: Float[Tensor, "B L D"]) -> None:
        """Remember a prompt from the start, whose features are made elsewhere."""
        chunks = (self.zeros + u.shape[1]) // self.chunk - (self.older.maxlen or 0)
        if self.by_state and chunks > 0:
            self.position = chunks * self.chunk - self.zeros
            state, form = self.current.state, self.bank.chunked(self.budget, self.chunk, real(u))
            for part in in_chunks(u[:, : self.position], self.chunk).split(SLAB, 1):
                state = run(part, state, form)[:, -1].clone()
            self.current = Chunk(state, self.current.inputs)
        while self.position < u.shape[1]:
            rest = u[:, self.position : self.position + self.room]
            self.current.inputs[:, self.index : self.index + rest.shape[1]] = rest
            self._move(rest.shape[1])

    @property
    def depth(self) -> int:
        """How many tokens it can forget."""
        return (
            min(self.position, self.index + len(self.older) * self.chunk) if self.by_state else self.position
        )

    def rollback(self, tokens: int) -> None:
        """Forget the last `tokens`, at most `depth`."""
        if self.by_state:
            now, then = self.zeros + self.position, self.zeros + self.position - tokens
            for _ in range(now // self.chunk - then // self.chunk):
                self.current = self.older.pop()
        self.position -= tokens
        self.current.inputs[:, self.index :] = 0

    def copy(self) -> "Memory":
        """Another one, independent of this."""
        twin = copy.copy(self)
        # states are never written to, inputs are: those of an older chunk after a rollback
        twin.current = Chunk(self.current.state, self.current.inputs.clone())
        twin.older = deque((Chunk(c.state, c.inputs.clone()) for c in self.older), self.older.maxlen)
        return twin

    def _move(self, tokens: int) -> None:
        """Past tokens just written, and into the next chunk if this one is full."""
        full = tokens == self.room
        self.position += tokens
        if full and self.by_state:
            state, inputs = self.current
            form = self.bank.chunked(self.budget, self.chunk, real(inputs))
            self.older.append(self.current)
            self.current = Chunk(run(inputs[:, None], state, form)[:, -1].clone(), torch.zeros_like(inputs))

    def _by_state(self, rows: slice, gates: Float[Tensor, "B m K"]) -> Float[Tensor, "B m KD"]:
        state, inputs = self.current
        seen = torch.cat([real(inputs), state.to(real(inputs).dtype)], 1)
        inside = self.bank.chunked(self.budget, self.chunk, seen).inside[rows]
        scaled = (inside * gates[..., None]).flatten(1, 2)  # (B, m K, seen)
        return (scaled @ seen).view(*gates.shape[:2], -1)

    def _by_taps(self, rows: slice, gates: Float[Tensor, "B m K"]) -> Float[Tensor, "B m KD"]:
        inputs = real(self.current.inputs)
        taps = self.bank.taps(self.budget, inputs)
        features = [taps[:, : t + 1] @ inputs[:, : t + 1].flip(1) for t in range(rows.start, rows.stop)]
        return (torch.stack(features, 1) * gates[..., None]).flatten(2)
