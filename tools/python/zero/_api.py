"""What `import zero` gives."""

import os
from pathlib import Path

from torch import nn

from zero import _weights
from zero._abi import ZeroError, lib
from zero._declared import StepInfo
from zero._engine import Engine
from zero._gathered import gathered
from zero._optimizer import Optimizer
from zero.data import Batches

__all__ = ["Batches", "Engine", "Optimizer", "StepInfo", "ZeroError", "fully_shard", "gathered", "load_pretrained"]
__version__: str = lib.zero_version()

fully_shard = Engine


def load_pretrained(model: nn.Module, directory: str | os.PathLike[str], *, strict: bool = False) -> nn.Module:
    """The model's parameters and buffers take their values from the safetensors files in `directory`, as transformers writes them:
    call it before fully_shard. Those on the meta device take them when fully_shard moves them to the engine: no rank ever holds more
    than one parameter and its own shard. A warning names what the files lack; with `strict` that is an error."""
    _weights.take(model, Path(directory), strict)
    return model
