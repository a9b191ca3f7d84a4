"""Which samples the next micro-steps take: the same for each step of a run on any number of ranks, as in `zero train`."""

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch.utils.data import Sampler

from zero._engine import Engine


class Batches(Sampler[list[int]]):
    """The indices of this rank's micro-batches in a dataset of `length` samples, from where the engine is (engine.samples): for
    DataLoader(data, batch_sampler=zero.Batches(engine, len(data))). It never ends: after the last sample it goes on with the first.
    With a `seed`, the order is permuted, anew for each time through the data. An iterator begins where the engine is, and does not
    follow a later engine.load."""

    def __init__(self, engine: Engine, length: int, seed: int | None = None) -> None:
        if length < 1:
            raise ValueError(f"zero: Batches: length is {length}; give the number of samples, at least 1")
        self.engine, self.length, self.seed = engine, length, seed
        self._order = lru_cache(maxsize=2)(self._permuted)

    def _permuted(self, through: int) -> list[int]:
        generator = torch.Generator().manual_seed((self.seed or 0) + through)
        order: list[int] = torch.randperm(self.length, generator=generator, device="cpu").tolist()
        return order

    def _index(self, sample: int) -> int:
        through, index = divmod(sample, self.length)
        return index if self.seed is None else self._order(through)[index]

    def __iter__(self) -> Iterator[list[int]]:
        engine = self.engine
        turn = engine.micro_batch * engine.size  # samples of a micro-step of all ranks
        at = engine.samples + engine.micro_batch * engine.rank
        while True:
            yield [self._index(i) for i in range(at, at + engine.micro_batch)]
            at += turn
