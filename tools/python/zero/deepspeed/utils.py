"""deepspeed.utils: the log, and small helpers."""

import os
from collections.abc import Callable, Iterable
from logging import INFO, getLogger
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from zero.deepspeed import loader, partition

RepeatingLoader = loader.RepeatingLoader
globals().update({name: value for name, value in vars(partition).items() if "z3_leaf" in name or name.startswith("safe_get_full")})

logger = getLogger("DeepSpeed")
logger.setLevel(os.environ.get("DS_LOG_LEVEL", "WARNING").upper())
_F = TypeVar("_F", bound=Callable[..., Any])
_said: set[str] = set()


def log_dist(message: str, ranks: Iterable[int] | None = None, level: int = INFO) -> None:
    """To the log of these ranks, or of all."""
    rank = dist.get_rank() if dist.is_initialized() else -1
    if not ranks or -1 in ranks or rank == -1 or rank in ranks:
        logger.log(level, "[Rank %s] %s", rank, message)


def log_dist_once(message: str, ranks: Iterable[int] | None = None, level: int = INFO) -> None:
    if message not in _said:
        _said.add(message)
        log_dist(message, ranks, level)


def see_memory_usage(message: str, force: bool = False) -> None:
    """engine.zero.memory() has the rows."""
    if force:
        logger.info(message)


def instrument_w_nvtx(function: _F) -> _F:
    return function


def move_to_device(item: Any, device: Any, criterion_func: Callable[[Any], bool] = torch.is_tensor, copies: bool = False) -> Any:
    if criterion_func(item):
        return (item.detach().clone() if copies else item).to(device)
    if isinstance(item, dict):
        return {key: move_to_device(value, device, criterion_func, copies) for key, value in item.items()}
    return type(item)(move_to_device(v, device, criterion_func, copies) for v in item) if isinstance(item, list | tuple) else item


def clone_tensors_for_torch_save(item: Any, device: Any = "cpu") -> Any:
    """Copies, each with memory of its own: torch.save writes the whole of a shared one."""
    return move_to_device(item, device, copies=True)


class OnDevice:
    """Tensors are made on this device, in this type."""

    def __init__(self, dtype: torch.dtype, device: str = "meta", enabled: bool = True) -> None:
        self.dtype, self.device, self.enabled = dtype, torch.device(device), enabled

    def __enter__(self) -> None:
        if self.enabled:
            self.before = torch.get_default_dtype()
            torch.set_default_dtype(self.dtype)
            self.device.__enter__()

    def __exit__(self, *error: object) -> None:
        if self.enabled:
            self.device.__exit__(*error)
            torch.set_default_dtype(self.before)
