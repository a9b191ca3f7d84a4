"""A parameter in the engine's memory, and its guard."""

import ctypes as C
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zero import _header
from zero._abi import ZeroError, lib
from zero._parts import keep_part, shape
from zero._private import guard, plain_class, storage_at, unguard

_torch: Any = torch  # functions without types


def owned(leaf: "Leaf", kind: int) -> tuple[int, int]:
    """The first element that this rank stores, and their number."""
    first, count = C.c_uint64(), C.c_uint64()
    lib.zero_param_owned(leaf.handle, kind, C.addressof(first), C.addressof(count))
    return first.value, count.value


def read_owned(leaf: "Leaf", kind: int) -> tuple[int, torch.Tensor]:
    """The first element that this rank stores, and the values of all."""
    first, count = owned(leaf, kind)
    values = torch.empty(count, dtype=torch.float32, device="cpu")
    lib.zero_param_get_owned(leaf.handle, kind, values.data_ptr(), first, count)
    return first, values


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
    came: bool = False  # in this step
    first: tuple[torch.dtype, bool] = (torch.float32, True)  # its type and requires_grad before the engine had it
    wake: Callable[[], None] | None = None  # below stage 3: waits until all parameters are up to date, if it can
    awake: bool = False  # this one is, and may be read
    away: int = 0  # how often it is gathered: it is a whole copy

    def attach(self, dtype: torch.dtype, device: torch.device) -> None:
        """The engine's memory in place of the parameter's own."""
        slot, p = lib.zero_param_addresses(self.handle), self.parameter
        self.first = p.dtype, p.requires_grad
        self.tensor = self.at(slot.param, dtype, device)
        for name in ("ds_tensor", "__deepcopy__"):
            p.__dict__.pop(name, None)
        if not p.is_meta:
            p.data = self.tensor
        else:  # another tensor takes the parameter's identity
            new = nn.Parameter(self.tensor, requires_grad=p.requires_grad)
            new.__dict__.update(p.__dict__)
            _torch.utils.swap_tensors(p, new)
        with suppress(ZeroError):  # a frozen parameter has no gradient
            owned(self, _header.ZERO_GRAD)
            self.trains = True
        if not self.trains:
            p.requires_grad_(False)
        else:
            self._make_no_grad(slot.param, dtype, device)
        self.storage = self.tensor.untyped_storage()._cdata
        self.message = (
            f"zero: parameter {self.name} is used outside of the forward and backward of its unit {self.unit or 'model'}, "
            "where the engine has released it; look at it with zero.gathered(...), or give fully_shard units in which it is used"
        )
        self.rest()

    def _make_no_grad(self, address: int, dtype: torch.dtype, device: torch.device) -> None:
        self.no_grad = self.at(address, dtype, device)  # the address is not used
        guard(
            self.no_grad,
            "zero: gradients are in the engine: gradient_clipping in the configuration clips them, fp16 scales losses, and the result of "
            "engine.step() has their norm",
            self.no_grad,
        )

    def seal(self) -> None:
        """Its gradient may not be looked at until the step."""
        kind = getattr(self.parameter, "grad_dtype", None)  # the program's choice, from PyTorch 2.10 on
        if self.no_grad is not None and kind not in (None, self.no_grad.dtype):
            self._make_no_grad(lib.zero_param_addresses(self.handle).param, kind, self.no_grad.device)
        self.parameter.grad = self.no_grad

    def at(self, address: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        whole = shape(self.parameter)
        storage = storage_at(address, whole.numel() * dtype.itemsize, device)
        tensor: torch.Tensor = _torch.empty(0, dtype=dtype, device=device).set_(storage, 0, whole)
        return tensor

    def _guard(self, sentence: str) -> None:
        assert self.tensor is not None
        guard(self.tensor, sentence, self.parameter)

    def rest(self) -> None:
        """Guards it as it is to be where no use of it is open."""
        assert self.tensor is not None
        if self.wake is None:
            self._guard(self.message)
        elif self.awake:
            lost = (
                f"zero: parameter {self.name} is changed, and the next step would lose that: change it in zero.gathered(..., modify=0)"
            )
            guard(self.tensor, lost, self.parameter, reads=True)
        else:
            guard(self.tensor, self.message, self.parameter, wake=self.wake)

    def park(self) -> None:
        self._guard(f"zero: parameter {self.name} is used while the engine is parked: call engine.unpark() first")

    def lend(self, whole: torch.Tensor) -> None:
        """A whole copy in place of the engine's memory, until come_back()."""
        plain_class(self.parameter)
        self.parameter.data = whole
        self.away += 1

    def give_back(self, values: torch.Tensor, part: bool) -> None:
        """The parameter is the program's again, with these values, or cut, with this rank's part of them."""
        unguard(self.storage, self.parameter)
        self.parameter.grad = None
        values = values.to(self.parameter.device)
        if part:
            keep_part(self.parameter, values)
        else:
            self.parameter.data = values
        self.parameter.requires_grad_(self.first[1])

    def come_back(self) -> None:
        """The engine's memory may be at another address."""
        assert self.tensor is not None
        address = lib.zero_param_addresses(self.handle).param
        unguard(self.storage, self.parameter)
        self.tensor = self.at(address, self.tensor.dtype, self.tensor.device)
        self.parameter.data = self.tensor
        self.storage, self.away = self.tensor.untyped_storage()._cdata, 0
        self.rest()

    def show(self) -> None:
        if not self.shown:
            unguard(self.storage, self.parameter)
        self.shown += 1

    def hide(self) -> None:
        self.shown -= 1
        if not self.shown:
            self.rest()
