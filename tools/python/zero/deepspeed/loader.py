"""Loaders of this rank's micro-batches."""

import math
from collections.abc import Callable, Iterator
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


class DeepSpeedDataLoader:
    """A DataLoader that may also be asked for its next batch; iter() begins it again. Shuffled in training."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        collate_fn: Callable[[Any], Any] | None,
        sampler: Any,
        shuffles: bool,
        workers: int,
        drop_last: bool,
    ) -> None:
        if sampler is None and not isinstance(dataset, IterableDataset):
            sampler = DistributedSampler(dataset, dist.get_world_size(), dist.get_rank(), shuffle=shuffles)
        self.dataset, self.data_sampler, self.batch_size = dataset, sampler, batch_size
        self.dataloader: DataLoader[Any] = DataLoader(
            dataset, batch_size, sampler=sampler, collate_fn=collate_fn, num_workers=workers, drop_last=drop_last
        )
        self._rows: Iterator[Any] | None = None

    def __len__(self) -> int:
        rows = len(self.data_sampler)
        return rows // self.batch_size if self.dataloader.drop_last else math.ceil(rows / self.batch_size)

    def __iter__(self) -> "DeepSpeedDataLoader":
        self._rows = iter(self.dataloader)
        return self

    def __next__(self) -> Any:
        if self._rows is None:
            raise TypeError("zero: call iter() of the loader before next()")
        return next(self._rows)
