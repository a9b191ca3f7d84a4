"""Loaders of this rank's micro-batches."""

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset


class RepeatingLoader:
    """A loader without an end: it begins again."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.data_iter = iter(loader)

    def __iter__(self) -> "RepeatingLoader":
        return self

    def __next__(self) -> Any:
        try:
            return next(self.data_iter)
        except StopIteration:
            self.data_iter = iter(self.loader)
            return next(self.data_iter)


class DeepSpeedDataLoader(DataLoader[Any]):
    """A DataLoader that may also be asked for its next batch; iter() begins it again. Shuffled in training."""

    _rows: Iterator[Any] | None = None

    def __init__(self, dataset: Any, batch_size: int, sampler: Any, shuffles: bool, **options: Any) -> None:
        if sampler is None and not isinstance(dataset, IterableDataset):
            sampler = DistributedSampler(dataset, dist.get_world_size(), dist.get_rank(), shuffle=shuffles)
        self.data_sampler = sampler
        super().__init__(dataset, batch_size, sampler=sampler, **options)

    def __iter__(self) -> Any:
        self._rows = super().__iter__()
        return self

    def __next__(self) -> Any:
        if self._rows is None:
            raise TypeError("zero: call iter() of the loader before next()")
        return next(self._rows)
