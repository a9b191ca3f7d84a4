"""A parameter in the engine's memory, and its guard."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zero._abi import lib
from zero._private import guard, storage_at, unguard

_torch: Any = torch  # functions without types


@dataclass(eq=False, slots=True)
class Leaf:
    """A parameter, whose data are the engine's memory, at one address. It is guarded outside of its uses: an operation that
    touches it then raises an exception with its name and its unit."""

    name: str
    unit: str
    parameter: nn.Parameter
    modules: frozenset[nn.Module]  # that are initialised together
    handle: int = 0
    tensor: torch.Tensor | None = None
    no_grad: torch.Tensor | None = None  # the gradient between backward and step: it may not be looked at
    storage: int = 0
    message: str = ""
    trains: bool = False
    shown: int = 0  # open uses with it
    given: bool = False  # a gradient came, ever

    def attach(self, dtype: torch.dtype, device: torch.device) -> None:
        """The engine's memory in place of the parameter's own."""
        slot, p = lib.zero_param_addresses(self.handle), self.parameter
        self.tensor = self.at(slot.param, dtype, device)
        if p.device == device:
            p.data = self.tensor
        else:  # on another device, such as meta: another tensor takes the parameter's identity
            new = nn.Parameter(self.tensor, requires_grad=p.requires_grad)
            new.__dict__.update(p.__dict__)
            _torch.utils.swap_tensors(p, new)
        self.trains = slot.grad is not None
        if not self.trains:
            p.requires_grad_(False)
        else:
            self.no_grad = self.at(slot.param, dtype, device)  # the address is not used
            guard(
                self.no_grad.untyped_storage()._cdata,
                "zero: gradients are in the engine: gradient_clipping in the configuration clips them, fp16 scales losses, and the result of "
                "engine.step() has their norm",
                self.no_grad,
            )
        self.storage = self.tensor.untyped_storage()._cdata
        self.message = (
            f"zero: parameter {self.name} is used outside of the forward and backward of its unit {self.unit or 'model'}, "
            "where the engine has released it; look at it with engine.full_parameters(), or give fully_shard units in "
            "which it is used"
        )
        self._guard(self.message)

    def at(self, address: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        size = self.parameter.numel() * dtype.itemsize
        tensor: torch.Tensor = _torch.empty(0, dtype=dtype, device=device).set_(
            storage_at(address, size, device), 0, self.parameter.shape
        )
        return tensor

    def _guard(self, sentence: str) -> None:
        guard(self.storage, sentence, self.parameter)

    def park(self) -> None:
        self._guard(f"zero: parameter {self.name} is used while the engine is parked: call engine.unpark() first")

    def come_back(self) -> None:
        """The engine's memory may be at another address."""
        assert self.tensor is not None
        address = lib.zero_param_addresses(self.handle).param
        there = self.at(address, self.tensor.dtype, self.tensor.device)
        guard(there.untyped_storage()._cdata, self.message, self.parameter)
        self.tensor, self.parameter.data = there, there
        self.storage = there.untyped_storage()._cdata

    def show(self) -> None:
        if not self.shown:
            unguard(self.storage, self.parameter)
        self.shown += 1

    def hide(self) -> None:
        self.shown -= 1
        if not self.shown:
            self._guard(self.message)
