"""Hooks that turn a model's forward and autograd's backward into passes of the engine.

A unit's parameters are there while its module runs forward, and while autograd is in it. At other times they are guarded:
an operation that touches them raises a sentence with their name and their unit.

    no pass --forward of the model--> TRAIN --it returns--> TRAIN, waiting --first gradient--> backward --its end--> no pass
                    |                                         |
                    an exception: the next pass cancels it    a forward without gradients: EVAL; the backward resumes
"""

import contextlib
import ctypes as C
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn
from torch.utils import _pytree as pytree

from zero._abi import EVAL, TRAIN, Slot, ZeroError, lib

_torch: Any = torch  # functions without types
_disable = _torch.compiler.disable
_guard = torch._C._set_storage_data_ptr_access_error_msg
_unguard = torch._C._clear_storage_data_ptr_access_error_msg
_in_autograd = torch._C._current_graph_task_id  # -1: this thread is in no backward
_NO_GRAD = (
    "zero: gradients are in the engine: gradient_clipping in the configuration clips them, and the result of "
    "engine.step() has their norm"
)


def tensor_at(address: int, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor over memory of the engine."""
    bytes = shape.numel() * dtype.itemsize
    storage = torch._C._construct_storage_from_data_pointer(address, device, bytes)
    out: Any = torch.empty(0, dtype=dtype, device=device)
    return cast(torch.Tensor, out.set_(storage, 0, shape))


@dataclass(eq=False, slots=True)
class Leaf:
    """A parameter, whose data are the engine's memory, at one address. `shown`: the number of open uses with it."""

    name: str
    unit: str
    parameter: nn.Parameter
    modules: list[nn.Module]  # that are initialised together
    handle: int = 0
    tensor: torch.Tensor | None = None
    storage: int = 0
    message: str = ""
    no_grad: torch.Tensor | None = None
    shown: int = 0
    given: bool = False  # a gradient, in this step

    def attach(self, dtype: torch.dtype, device: torch.device) -> None:
        """The engine's memory in place of the parameter's own."""
        slot = Slot()
        lib.zero_param_addresses(self.handle, C.byref(slot))
        p = self.parameter
        self.tensor = tensor_at(slot.param, p.shape, dtype, device)
        if p.device == device:
            p.data = self.tensor
        else:  # of the meta device: another tensor takes the parameter's identity
            new = nn.Parameter(self.tensor, requires_grad=p.requires_grad)
            new.__dict__.update(p.__dict__)
            _torch.utils.swap_tensors(p, new)
        if slot.grad is None:
            p.requires_grad_(False)
        else:
            one = torch.empty(1, dtype=dtype, device=device)
            self.no_grad = one.expand(p.shape)
            _guard(one.untyped_storage()._cdata, _NO_GRAD)
        self.storage = self.tensor.untyped_storage()._cdata
        self.message = (
            f"zero: parameter {self.name} is used outside of the forward and backward of its unit {self.unit or 'model'}, "
            "where the engine has released it; look at it with engine.full_parameters(), or give fully_shard units in "
            "which it is used"
        )
        _guard(self.storage, self.message)


@dataclass(eq=False, slots=True)
class Use:
    """A unit of the engine: one call of a module in a forward; in free order all its calls."""

    handle: int
    index: int
    leaves: list[Leaf]
    gradients: Any  # an array of addresses
    trains: bool = False


@dataclass(eq=False, slots=True)
class Call:
    """A call of a module in this pass."""

    use: Use
    unit: "Unit"
    begun: bool = False  # its backward


@dataclass(eq=False, slots=True)
class Unit:
    name: str
    module: nn.Module
    uses: list[Use] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


class _Token:
    """The hooks of a pass hold it: while it lives, a backward may come."""


def tensors_in(output: Any) -> list[Any]:
    """Those that need a gradient."""
    if isinstance(output, torch.Tensor):
        return [output] if output.requires_grad else []
    leaves = pytree.tree_leaves(output)
    if len(leaves) == 1 and hasattr(leaves[0], "__dict__") and not isinstance(leaves[0], torch.Tensor):
        leaves = pytree.tree_leaves(vars(leaves[0]))  # an object of a class of the model's own
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]


class Passes:
    """The state of the present pass, and the hooks."""

    def __init__(self, model: nn.Module, handle: int, free: bool, prepare: Callable[[Any, Any], None]) -> None:
        self.model, self.handle, self.free, self.prepare = model, handle, free, prepare
        self.dtype: torch.dtype | None = None  # to which floating-point inputs are cast
        self.units: dict[nn.Module, Unit] = {}
        self.leaves: list[Leaf] = []
        self.held: Use | None = None  # parameters of the whole model, and the use at whose begin they come
        self.root: Use | None = None
        self.mode: int | None = None
        self.micro = 0  # training passes of this step
        self.in_root = False
        self.waiting = False  # a training pass waits for its backward
        self.backward = False
        self.position = self.last = 0  # of the next forward; of the backward before
        self.recent: Use | None = None  # the last one in a training pass's forward
        self.open: list[tuple[Call, bool]] = []  # uses, and whether they are backward
        self.token: weakref.ref[_Token] = weakref.ref(_Token())
        self.holder: _Token | None = None
        self.ignored = False
        self.hooks = [
            model.register_forward_pre_hook(_disable(self._root_pre), prepend=True, with_kwargs=True),
            model.register_forward_hook(_disable(self._root_post)),
        ]

    def attach(self) -> None:
        for module in self.units:
            if module is self.model:
                continue  # the model's own hooks call these
            self.hooks.append(module.register_forward_pre_hook(_disable(self._unit_pre), prepend=True))
            self.hooks.append(module.register_forward_hook(_disable(self._unit_post)))

    @contextlib.contextmanager
    def ignoring(self) -> Iterator[None]:
        """For forwards that are none of the engine's business."""
        self.ignored = True
        try:
            yield
        finally:
            self.ignored = False

    # ---- passes ----

    def _begin(self, mode: int) -> None:
        """Opens a pass, after what the one before has left."""
        self.settle()
        if self.waiting and mode == TRAIN:
            if self.token() is None:  # no one has its result any more
                if self.mode == EVAL:
                    self.cancel()
                self.cancel()
            elif self.free:  # both forwards are one pass
                self._resume()
                self.holder = self.token()
                return
            else:
                raise ZeroError(
                    "zero: a forward with gradients comes before the backward of the one before: call backward first, "
                    "evaluate under torch.no_grad(), or give fully_shard free_order=True for two forwards and one backward"
                )
        lib.zero_micro_begin(self.handle, mode)
        self.mode, self.position, self.recent = mode, 0, None if mode == TRAIN else self.recent
        if mode == TRAIN:
            self.micro += 1
            self.waiting = True
            self.holder = _Token()
            self.token = weakref.ref(self.holder)
            self._set_grads(None)
            for unit in self.units.values():
                unit.calls.clear()
        if self.root:
            self._hide_all()
            lib.zero_forward_begin(self.root.handle)
            self._show(self.held)
            lib.zero_forward_end(self.root.handle)

    def settle(self) -> bool:
        """Drops a pass that has ended with an exception; whether there was one."""
        broken = bool(self.open) or self.in_root or self.backward
        if broken:
            self.cancel()
        return broken

    def cancel(self) -> None:
        """Drops the open pass: an evaluation, or a training pass, or after its backward has begun the whole step."""
        lib.zero_micro_cancel(self.handle)
        self._hide_all()
        self.open.clear()
        self.in_root = False
        self.holder = None
        if self.mode == EVAL:
            self.mode = None
            return
        self.micro = 0 if self.backward else self.micro - 1
        self.mode, self.waiting, self.backward = None, False, False
        self._set_grads(None)

    def _set_grads(self, how: Callable[[Leaf], torch.Tensor | None] | None) -> None:
        for leaf in self.leaves:
            leaf.parameter.grad = how(leaf) if how else None

    # ---- parameters ----

    def _show(self, use: Use | None) -> None:
        for leaf in use.leaves if use else ():
            if not leaf.shown:
                _unguard(leaf.storage)
            leaf.shown += 1

    def _hide(self, use: Use) -> None:
        for leaf in use.leaves:
            leaf.shown -= 1
            if not leaf.shown:
                _guard(leaf.storage, leaf.message)

    def _hide_all(self) -> None:
        for leaf in self.leaves:
            if leaf.shown:
                leaf.shown = 0
                _guard(leaf.storage, leaf.message)

    # ---- forward ----

    def _root_pre(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.ignored:
            return None
        if _in_autograd() != -1:
            if module in self.units:
                self._unit_pre(module, args)
            return None
        self.prepare(args, kwargs)
        self._begin(TRAIN if torch.is_grad_enabled() else EVAL)
        self.in_root = True
        if module in self.units:
            self._unit_pre(module, args)
        if self.dtype is None:
            return None
        cast = lambda t: t.to(self.dtype) if t.is_floating_point() else t
        return pytree.tree_map_only(torch.Tensor, cast, (args, kwargs))

    def _root_post(self, module: nn.Module, args: Any, output: Any) -> None:
        if module in self.units:
            self._unit_post(module, args, output)
        if self.ignored or _in_autograd() != -1:
            return
        self.in_root = False
        if self.mode == TRAIN:
            token = self.holder
            for t in tensors_in(output):
                t.register_hook(lambda grad, token=token: self._enter_backward())
        elif self.root:
            self._hide_all()
        self.holder = None

    def _next(self, unit: Unit) -> Call | None:
        """This call's use; None: the turn of all of them is over in this pass."""
        for use in unit.uses:
            if self.free or use.index >= self.position:
                return Call(use, unit)
        return None

    def _unit_pre(self, module: nn.Module, args: Any) -> None:
        if self.ignored:
            return
        unit = self.units[module]
        if _in_autograd() != -1:
            self._recompute(unit)
            return
        mode = TRAIN if torch.is_grad_enabled() else EVAL
        if not self.in_root and (self.mode is None or (self.mode, mode) == (EVAL, TRAIN)):
            self._begin(mode)
        call = self._next(unit)
        if call is None:
            if self.in_root and self.mode == TRAIN:
                raise ZeroError(
                    f"zero: {unit.name} is called more often or later than in the forward that gave the order of units; "
                    "give fully_shard free_order=True"
                )
            self._begin(EVAL if self.in_root else mode)
            self.in_root = self.in_root or False
            call = self._next(unit)
            assert call
        lib.zero_forward_begin(call.use.handle)
        self.position = call.use.index + 1
        if self.mode == TRAIN:
            unit.calls.append(call)
            self.recent = call.use
        self.open.append((call, False))
        self._show(call.use)

    def _unit_post(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.ignored or not self.open:
            return
        call, backward = self.open[-1]
        if backward or call.unit.module is not module:
            return
        self._end()
        if self.mode == TRAIN and torch.is_grad_enabled():
            token = self.holder
            for t in tensors_in(output):
                t.register_hook(lambda grad, call=call, token=token: self._fire(call))
        if not self.in_root and _in_autograd() == -1:
            self.holder = None

    # ---- backward ----

    def _recompute(self, unit: Unit) -> None:
        """A checkpoint runs the module's forward again."""
        self._enter_backward()
        if self.open and self.open[-1][1] and self.open[-1][0].unit is unit:
            return  # inside its own backward: the parameters are there
        if self.open and not self.free:
            self._end()
        left = [c for c in unit.calls if not c.begun]
        if not left:
            raise ZeroError(f"zero: {unit.name} is called in a backward, but not in its forward")
        lib.zero_forward_begin(left[-1].use.handle)
        self.open.append((left[-1], False))
        self._show(left[-1].use)

    def _enter_backward(self) -> None:
        """The first event of a backward, in autograd's outermost one."""
        if self.backward:
            return
        if not self.waiting and not (self.free and self.mode == TRAIN):
            raise ZeroError(
                "zero: a backward comes after that of its pass, or after a later pass: give fully_shard free_order=True "
                "for several backwards of one forward"
            )
        self._resume()
        self.backward, self.waiting, self.last = True, False, 1 << 32
        self._set_grads(None)
        _torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _resume(self) -> None:
        """Back from an evaluation that has interrupted the training pass."""
        if self.mode == TRAIN:
            return
        self.settle()
        lib.zero_micro_resume(self.handle)
        self.mode = TRAIN
        use = self.root if self.free else self.recent
        if self.held and use:  # a use brings what is held
            lib.zero_forward_begin(use.handle)
            self._hide_all()
            self._show(self.held)
            lib.zero_forward_end(use.handle)

    def _fire(self, call: Call) -> None:
        """A gradient comes to an output of this call."""
        self._enter_backward()
        if call.begun or (not self.free and call.use.index > self.last):
            return  # the latter: of a tensor that the call only passes on
        while self.open:
            self._end()
        lib.zero_backward_begin(call.use.handle)
        call.begun = True
        self.last = call.use.index
        self.open.append((call, True))
        self._show(call.use)

    def _end(self) -> None:
        call, backward = self.open.pop()
        if backward:
            self._give(call.use)
            lib.zero_backward_end(call.use.handle)
        else:
            lib.zero_forward_end(call.use.handle)
        self._hide(call.use)

    def _give(self, use: Use) -> None:
        """The gradients of a unit, which autograd has made; None is zero."""
        if not use.trains:
            return
        alive = []
        for i, leaf in enumerate(use.leaves):
            grad = leaf.parameter.grad
            if grad is not None:
                leaf.parameter.grad = None
                leaf.given = True
                grad = (grad.to_dense() if grad.is_sparse else grad).contiguous()
                alive.append(grad)
            use.gradients[i] = grad.data_ptr() if grad is not None else None
        lib.zero_unit_give_grads(use.handle, use.gradients)

    def _finish(self) -> None:
        """Autograd has ended."""
        while self.open:
            self._end()
        if self.root and self.held:
            lib.zero_backward_begin(self.root.handle)
            self._give(self.held)
            lib.zero_backward_end(self.root.handle)
            self._hide_all()
        self.backward = False
        if not self.free:
            self.mode = None
        for unit in self.units.values() if self.free else ():  # another backward may come
            for call in unit.calls:
                call.begun = False
        for leaf in self.leaves:
            if leaf.parameter.grad is not None:
                raise ZeroError(
                    f"zero: a gradient came to parameter {leaf.name} outside of the backward of its unit {leaf.unit}; "
                    "give fully_shard units in which it is used"
                )
        self._set_grads(lambda leaf: leaf.no_grad)

    def empty(self) -> None:
        """A training pass that uses nothing."""
        self._begin(TRAIN)
        self.finish()

    def finish(self) -> None:
        """After loss.backward() has returned: of a loss that uses no unit."""
        if self.waiting and self.mode == TRAIN and not self.in_root and not self.open:
            self.waiting = False
            self._finish()
