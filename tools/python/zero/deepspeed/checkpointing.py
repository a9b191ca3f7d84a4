"""deepspeed.checkpointing: activations that the backward computes again, by torch.utils.checkpoint."""

from typing import Any

from torch.utils.checkpoint import checkpoint as _checkpoint

_configured = False


def configure(*_: Any, **__: Any) -> None:
    """Where activations are kept is PyTorch's: torch.autograd.graph.save_on_cpu() around the model takes them to host memory."""
    global _configured
    _configured = True


def is_configured() -> bool:
    return _configured


def reset() -> None:
    """Nothing is kept between two steps."""


def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
    return _checkpoint(function, *args, use_reentrant=False, **kwargs)


non_reentrant_checkpoint = checkpoint
