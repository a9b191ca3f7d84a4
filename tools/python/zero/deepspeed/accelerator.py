"""deepspeed.accelerator: the device on which this process computes, as torch.cuda and torch.cpu have it."""

import os
from functools import cache
from typing import Any

import torch

_RANDOM = ("get_rng_state", "set_rng_state", "initial_seed", "manual_seed", "manual_seed_all")  # torch.cpu lacks them


class Accelerator:
    """What get_accelerator() returns. Names that are not here are those of torch.cuda, or of torch.cpu."""

    def __init__(self) -> None:
        self._name = "cuda" if torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR", "cuda") == "cuda" else "cpu"
        self._torch: Any = getattr(torch, self._name)
        self._is_cuda = self._name == "cuda"
        self._answers: dict[str, Any] = {
            "communication_backend_name": "nccl" if self._is_cuda else "gloo",
            "is_available": True,
            "is_synchronized_device": not self._is_cuda,
            "is_bf16_supported": not self._is_cuda or torch.cuda.is_bf16_supported(),
            "is_fp16_supported": True,
            "is_triton_supported": self._is_cuda,
            "supported_dtypes": [torch.float32, torch.float16, torch.bfloat16],
            "random": torch.random,
            "amp": torch.amp,
            "range_push": None,
            "range_pop": None,
        }

    def device_name(self, device_index: int | None = None) -> str:
        return self._name if device_index is None or not self._is_cuda else f"{self._name}:{device_index}"

    def current_device(self) -> Any:
        return torch.cuda.current_device() if self._is_cuda else os.environ.get("LOCAL_RANK", "0")

    def current_device_name(self) -> str:
        return self.device_name(self.current_device())

    def device(self, device_index: int | None = None) -> Any:
        return torch.device(self.device_name(device_index))

    def set_device(self, device_index: int) -> None:
        if self._is_cuda:
            torch.cuda.set_device(device_index)

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._name

    def default_generator(self, device_index: int) -> torch.Generator:
        return torch.cuda.default_generators[device_index] if self._is_cuda else torch.default_generator

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
        return tensor.pin_memory() if self._is_cuda else tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_answers", ()):
            return lambda *_: self._answers[name]
        source = torch if name in _RANDOM and not self._is_cuda else self._torch
        found = None if name.startswith("_") else getattr(source, name.removesuffix("_all") if source is torch else name, None)
        if found is not None:
            return found
        idle = not self._is_cuda and not name.startswith("_") and not any(word in name for word in ("rng", "seed"))
        if idle and callable(getattr(torch.cuda, name, None)):
            return lambda *_, **__: 0  # memory_allocated, empty_cache: a CPU has none
        raise AttributeError(f"zero: get_accelerator() has no {name!r}: ask torch.cuda or torch.cpu")


@cache
def get_accelerator() -> Accelerator:
    return Accelerator()
