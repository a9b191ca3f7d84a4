"""ZeRO data parallelism for any PyTorch model: parameters, gradients and optimizer state are sharded over ranks.

engine = zero.fully_shard(model, "ds_config.json", units=[Block])
for batch in loader:
    loss = model(**batch).loss
    engine.backward(loss)
    info = engine.step()
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zero._abi import ZeroError, __version__
    from zero._declared import StepInfo
    from zero._engine import Engine
    from zero._gathered import gathered
    from zero._optimizer import Optimizer
    from zero._weights import load_pretrained
    from zero.data import Batches

    fully_shard = Engine

__all__ = ["Batches", "Engine", "Optimizer", "StepInfo", "ZeroError", "__version__", "fully_shard", "gathered", "load_pretrained"]

# What CUDA and NCCL read once, when they start: as much as the engine's streams need. Set here, since the rest comes later.
_VARIABLES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "NCCL_LAUNCH_ORDER_IMPLICIT": "1", "NCCL_LAUNCH_RACE_FATAL": "0"}
_started = "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized()
_late = [name for name in _VARIABLES if name not in os.environ and _started]
for _name, _value in _VARIABLES.items():
    os.environ.setdefault(_name, _value)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """They come when one is asked for: the launcher and zero.deepspeed.install() need no PyTorch."""
    if name in ("data", "trainer"):
        return import_module(f"zero.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'zero' has no attribute {name!r}")
    for home in ("_abi", "_engine", "_declared", "_gathered", "_weights", "data"):
        found = getattr(import_module(f"zero.{home}"), "Engine" if name == "fully_shard" else name, None)
        if found is not None:
            break
    globals()[name] = found
    return found
