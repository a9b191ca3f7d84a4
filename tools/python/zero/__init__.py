"""ZeRO data parallelism for any PyTorch model: parameters, gradients and optimizer state are sharded over ranks.

engine = zero.fully_shard(model, "ds_config.json", units=[Block])
for batch in loader:
    loss = model(**batch).loss
    engine.backward(loss)
    info = engine.step()
"""

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


def __getattr__(name: str) -> Any:
    """They come when one is asked for: the launcher and zero.deepspeed.install() need no PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module 'zero' has no attribute {name!r}")
    for home in ("_abi", "_engine", "_declared", "_gathered", "_weights", "data"):
        found = getattr(import_module(f"zero.{home}"), "Engine" if name == "fully_shard" else name, None)
        if found is not None:
            break
    globals()[name] = found
    return found
