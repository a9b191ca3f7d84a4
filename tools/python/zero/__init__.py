"""ZeRO data parallelism for any PyTorch model: parameters, gradients and optimizer state are sharded over ranks.

engine = zero.fully_shard(model, "ds_config.json", units=[Block])
for batch in loader:
    loss = model(**batch).loss
    engine.backward(loss)
    info = engine.step()
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zero._api import Batches, Engine, Optimizer, StepInfo, ZeroError, fully_shard, gathered, load_pretrained

    __version__: str

__all__ = ["Batches", "Engine", "Optimizer", "StepInfo", "ZeroError", "fully_shard", "gathered", "load_pretrained"]


def __getattr__(name: str) -> Any:
    """They come when one is asked for: the launcher and zero.deepspeed.install() need no PyTorch."""
    if name not in (*__all__, "__version__"):
        raise AttributeError(f"module 'zero' has no attribute {name!r}")
    from zero import _api

    globals().update({key: getattr(_api, key) for key in (*__all__, "__version__")})
    return globals()[name]
