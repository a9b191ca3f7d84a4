"""What `import zero` gives."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from zero import _weights
from zero._abi import ZeroError, lib
from zero._declared import StepInfo
from zero._engine import Engine
from zero._gathered import gathered
from zero._optimizer import Optimizer
from zero.data import Batches

__all__ = ["Batches", "Engine", "Optimizer", "StepInfo", "ZeroError", "fully_shard", "gathered", "initialize", "load_pretrained"]
__version__: str = lib.zero_version()

fully_shard = Engine


def initialize(
    model: nn.Module,
    config: str | os.PathLike[str] | dict[str, Any],
    *,
    training_data: Any = None,
    lr_scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    **options: Any,
) -> tuple[Engine, Optimizer, DataLoader[Any] | None, Any]:
    """Like deepspeed.initialize, returns the engine, its optimizer, a loader of this rank's micro-batches of `training_data`, and
    the scheduler that `lr_scheduler` makes from the optimizer. `options`: those of fully_shard."""
    engine = Engine(model, config, **options)
    loader = None
    if training_data is not None:
        sampler: Any = DistributedSampler(training_data, num_replicas=engine.size, rank=engine.rank)
        loader = DataLoader(training_data, batch_size=engine.micro_batch, sampler=sampler, collate_fn=collate_fn, drop_last=True)
    return engine, engine.optimizer, loader, lr_scheduler(engine.optimizer) if lr_scheduler else None


def load_pretrained(model: nn.Module, directory: str | os.PathLike[str], *, strict: bool = False) -> nn.Module:
    """The model's parameters and buffers take their values from the safetensors files in `directory`, as transformers writes them:
    call it before fully_shard. Those on the meta device take them when fully_shard moves them to the engine: no rank ever holds more
    than one parameter and its own shard. A warning names what the files lack; with `strict` that is an error."""
    _weights.take(model, Path(directory), strict)
    return model
