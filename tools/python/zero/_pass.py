"""Hooks that turn a model's forward and autograd's backward into passes of the engine.

A unit's parameters are gathered while its module runs forward, and while autograd reads what that forward has saved. Autograd itself
decides what a backward reaches:

1. While a unit's forward runs, its hooks on saved tensors are on top of those of the program, which they call. A node that reads a saved
   tensor brings the unit of that forward.
2. A gradient counts by when it comes, whatever led to it. engine.backward begins the pass; for loss.backward() the first read does, or the
   first gradient of an output.
3. Before the backward of a unit, and at the end, those of the later units are done, with what came for them. So all ranks make the same.
4. A tensor of an earlier pass cannot bring a unit: its backward raises.

A backward that gives parameters no gradients, as torch.autograd.grad of an input, is an EVAL: the pass waits as before.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import torch
from torch import nn

from zero._abi import ZeroError, lib
from zero._header import ZERO_EVAL as EVAL
from zero._header import ZERO_TRAIN as TRAIN
from zero._open import FIRST, FREE, Call, OpenPass, Pass
from zero._private import current_graph_task as _in_autograd
from zero._private import (
    gets_gradient,
    is_checkpoint_valid,
    is_guarded,
    outer_hooks,
    pop_hooks,
    push_hooks,
    pytree,
    queue_callback,
    reset_code,
)

_torch: Any = torch  # functions without types
_disable = _torch.compiler.disable

_LATE = (
    "zero: a backward comes after that of its pass, or after a later forward with gradients: evaluate under torch.no_grad(), or give "
    f"{FREE} for two forwards and one backward, or for several backwards of one forward"
)
_CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: it is at version {}, and a node of "
    "unit {} expects version {}"
)


_run = methodcaller("__call__")


def _at_once(*calls: Callable[[], Any]) -> None:
    """Calls functions of C one after another: no exception of Ctrl-C comes between them, where Python runs no bytecode."""
    deque(map(_run, calls), 0)


def _pack(t: torch.Tensor) -> Any:
    """The tensor itself would hold its own graph. PyTorch does not look for changes in place under hooks: _unpack does."""
    return t.detach(), t._version


def copy_state(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """A state_dict of parameters that rest in the engine's memory: the program may keep it, write it, and write to it."""
    copies = dict[int, torch.Tensor]()
    for name, t in () if prefix else state.items():
        if is_guarded(t):
            storage = t.untyped_storage()._cdata
            copies[storage] = state[name] = copies[storage] if storage in copies else t.clone()


class Passes(OpenPass):
    """The state of the present pass, and the hooks."""

    # Of the loss, of any engine, and the backward in which it counts; None: while engine.backward runs.
    scale: tuple[float, int | None] | None = None

    def __init__(
        self, model: nn.Module, handle: int, free: bool, prepare: Callable[[Any, Any], None], count: Callable[[], None]
    ) -> None:
        super().__init__(handle, free, count)
        self.model, self.prepare = model, prepare
        self.cast: Any = None  # a function that casts the model's own inputs
        self.hooked: list[tuple[Call, bool]] = []  # forwards whose saved tensors are looked at, and whether they are in a backward
        reset_code()
        self.hooks: list[Any] = []
        self.pre, self.post = _disable(self._unit_pre), _disable(self._unit_post)

    def attach_model(self) -> None:
        self.hooks.append(self.model.register_forward_pre_hook(_disable(self._root_pre), prepend=True, with_kwargs=True))
        self.hooks.append(self.model.register_forward_hook(_disable(self._root_post)))

    def attach(self) -> None:
        for module in self.uses.keys() - {self.model}:  # the model's own hooks call these
            if self.pre not in module._forward_pre_hooks.values():
                self.hooks.append(module.register_forward_pre_hook(self.pre, prepend=True))
            if self.post not in module._forward_hooks.values():  # also after an exception: the program's own hooks come next
                self.hooks.append(module.register_forward_hook(self.post, always_call=True))
        if any(leaf.wake for leaf in self.leaves):
            self.hooks += [module.register_state_dict_post_hook(copy_state) for module in self.model.modules()]  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self.model, self.uses = nn.Module(), {}  # a hook that an exception has left does nothing
        for hook in self.hooks:
            hook.remove()
        for leaf in self.leaves:
            leaf.message, leaf.wake = f"zero: parameter {leaf.name}: its engine is closed; take engine.state_dict() before", None
        self.guard_all()

    def ignores(self) -> bool:
        self.leave()
        return self.whole

    # ---- forward ----

    def _root_pre(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if module is not self.model or (self.whole and self.ignores()):  # a copy of the model has these hooks, too
            return None
        if _in_autograd() == -1:
            self.prepare(args, kwargs)
            self.begin(TRAIN if torch.is_grad_enabled() else EVAL)
            self.in_root = True
        if module in self.uses:
            self._unit_pre(module, args)
        return self.cast(module, args, kwargs) if self.cast else None

    def _root_post(self, module: nn.Module, args: Any, output: Any) -> None:
        if module is not self.model:
            return
        if module in self.uses:
            self._unit_post(module, args, output)
        if self.whole or _in_autograd() != -1:
            return
        if self.mode == TRAIN:
            owner = self.current
            self._watch(pytree.tree_leaves(output), lambda grad: self._enter(owner))
        elif self.root:
            self.hide_all()
        self.current = None
        self.in_root = False

    def _unit_pre(self, module: nn.Module, args: Any) -> None:
        if module not in self.uses or (self.whole and self.ignores()):
            return
        if _in_autograd() != -1:
            self._recompute(module)
            return
        outer = self._open_call(module)
        if outer:
            outer.inside += 1
            return
        mode = TRAIN if torch.is_grad_enabled() else EVAL
        if not self.in_root and (self.busy is not None or self.parked):
            self.settle()
        now = self.current or (self.training() if self.waiting and self.mode == TRAIN else None)
        if not now or (not self.in_root and (self.mode, mode) == (EVAL, TRAIN)):
            now = self.begin(mode)
        use = next((use for use in self.uses[module] if self.free or use.index >= now.position), None)
        if use is None:  # the turn of all of them is over in this pass
            if self.in_root and self.mode == TRAIN:
                raise ZeroError(
                    f"zero: {self.uses[module][0].name} is called more often or later than in the forward that gave the order "
                    f"of units: give {FREE}, or call engine.commit(…) with a batch before generate(), state_dict() or resume()"
                )
            now = self.begin(EVAL if self.in_root else mode)
            use = self.uses[module][0]
        call = Call(use)
        self.open_use(call, False)
        self.current, now.position = now, use.index + 1
        if self.mode == TRAIN:
            self.calls.append(call)
            if mode == TRAIN:
                self._hook(call, now)

    def _open_call(self, module: nn.Module) -> Call | None:
        """The forward of the module that has not ended, in which it calls itself."""
        return next((call for call, backward in self.open if call.use.module is module and not backward), None)

    def _unit_post(self, module: nn.Module, args: Any, output: Any) -> None:
        outer = self._open_call(module)
        if outer and outer.inside:
            outer.inside -= 1
            return
        if self.hooked and self.hooked[-1][0].use.module is module:
            _at_once(self.hooked.pop, pop_hooks)
        if self.whole or not self.open:
            return
        call, backward = self.open[-1]
        if backward or call.use.module is not module:
            return
        self.end_use()
        if self.mode == TRAIN and not self.in_backward and torch.is_grad_enabled():
            owner = self.current
            self._watch(output if type(output) is tuple else (output,), lambda grad: self._need(call, owner))
        if not self.in_root and not self.in_backward:
            self.current = None

    def _watch(self, output: Any, comes: Callable[[Any], None]) -> None:
        for t in output:
            if isinstance(t, torch.Tensor) and t.requires_grad:
                t.register_hook(comes)  # type: ignore[no-untyped-call]

    # ---- saved tensors ----

    def _hook(self, call: Call, owner: Pass | None, again: bool = False) -> None:
        outer = outer_hooks()
        if outer is None:
            pair = _pack, partial(self._unpack, call, owner)
        elif outer:
            pair = outer[0], partial(self._unpack_outer, call, owner, outer[1])
        else:
            return
        _at_once(partial(push_hooks, *pair), partial(self.hooked.append, (call, again)))

    def unhook(self) -> None:
        """A program's own `with` may have left ours in place of its own after an exception: their number is right in any case. Those of a
        backward have ended with it."""
        while self.hooked and _in_autograd() == -1:
            _at_once(self.hooked.pop, *(() if self.hooked[-1][1] else (pop_hooks,)))

    def _unpack(self, call: Call, owner: Pass | None, packed: Any) -> torch.Tensor:
        if self.now is not call:
            self._need(call, owner)
        t: torch.Tensor = packed[0]
        if t._version != packed[1]:
            raise RuntimeError(_CHANGED.format(t._version, call.use.name, packed[1]))
        return t

    def _unpack_outer(self, call: Call, owner: Pass | None, unpack: Any, packed: Any) -> Any:
        if self.now is not call:
            self._need(call, owner)
        return unpack(packed)

    # ---- backward ----

    def _enter(self, owner: Pass | None) -> None:
        """The first event of a backward, in autograd's outermost one."""
        if self.in_backward and owner is self.training():
            return
        if self.in_backward or not owner or owner is not self.training():
            raise ZeroError(_LATE)
        if not self.in_root:
            self.end_broken()
        if not self.awaits_backward():
            raise ZeroError(_LATE)
        # A backward to chosen inputs, of which none is a parameter. PyTorch refuses reentrant checkpoints in it: they hide parameters.
        # Or one through a model that is frozen as a whole, perhaps for this backward alone, as a critic is in the generator's turn.
        frozen = not any(leaf.parameter.requires_grad for leaf in self.leaves)
        if frozen or (not is_checkpoint_valid() and not any(gets_gradient(leaf.parameter) for leaf in self.leaves)):
            if self.in_root:
                raise ZeroError("zero: torch.autograd.grad is called inside of the model's forward: call it on what the model returns")
            self.begin(EVAL)
            owner.read = self.reads = self.in_backward = True
            self.current, self.last = owner, FIRST
        else:
            scale = lib.zero_engine_loss_scale(self.handle)
            given, task = Passes.scale or (None, None)
            given = given if task in (None, _in_autograd()) else None
            if (given or 1) != scale:
                raise ZeroError(
                    "zero: loss.backward() lacks the loss scale of fp16: call engine.backward(loss)"
                    if given is None
                    else f"zero: this loss has the loss scale of another engine, {given:g}, and that of this one is {scale:g}: call "
                    "engine.backward(loss) of each engine with a loss of its own"
                )
            self.check_not_cleared()
            self.start()
        queue_callback(self.finish)

    def _need(self, call: Call, owner: Pass | None) -> None:
        """A node of this call is about to run."""
        if _in_autograd() == -1 or any(call is c for c, _ in self.open):
            return
        self._enter(owner)
        if not self.free and (call.begun or call.use.index > self.last):
            return  # its backward is over: a weight that the node reads has a guard
        self.end_uses()
        if not self.free and not self.reads:
            self.deliver(call)
        self.open_use(call, True)

    def _recompute(self, module: nn.Module) -> None:
        """A checkpoint runs the module's forward again."""
        owner = self.training()
        self._enter(owner)
        if self.open and self.open[-1][1] and self.open[-1][0].use.module is module:
            self._hook(self.open[-1][0], owner, True)
            return  # inside its own backward: the parameters are there
        if self.open and not self.free:
            self.end_use()
        calls = [c for c in self.calls if c.use.module is module]
        left = [c for c in calls if not c.begun]
        name = self.uses[module][0].name
        several = f"zero: {name} is recomputed in a checkpoint around several units; give {FREE}"
        if not left:
            raise ZeroError(several if calls and not self.free else f"zero: {name} is called in a backward, but not in its forward")
        try:
            if self.free or self.reads:
                self.open_use(left[-1], False)
            elif left[-1].use.index > self.last:
                raise ZeroError(several)
            else:
                self._need(left[-1], owner)
            self._hook(left[-1], owner, True)
        except ZeroError as error:
            if self.free or error.code != "ZERO_E_ORDER":
                raise
            raise ZeroError(several) from error
