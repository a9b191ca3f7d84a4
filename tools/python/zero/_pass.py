"""Hooks that turn a model's forward and autograd's backward into passes of the engine.

A unit's parameters are gathered while its module runs forward, and while autograd runs its backward.

    no pass --forward of the model--> TRAIN --it returns--> TRAIN, waiting --first gradient--> backward --its end--> no pass
                    |                                         |
                    an exception: the next pass cancels it    a forward without gradients: EVAL; the backward resumes

A backward that gives parameters no gradients, as torch.autograd.grad of an input, is an EVAL: the pass waits as before.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from zero._abi import ZeroError, lib
from zero._header import ZERO_EVAL as EVAL
from zero._header import ZERO_TRAIN as TRAIN
from zero._leaf import Leaf

_torch: Any = torch  # functions without types
_disable = _torch.compiler.disable
_in_autograd = torch._C._current_graph_task_id  # -1: this thread is in no backward
_FIRST = 1 << 32  # above the index of each use


@dataclass(eq=False, slots=True)
class Use:
    """A unit of the engine: one call of a module in a forward; in free order all its calls."""

    name: str
    module: nn.Module
    handle: int
    index: int
    leaves: list[Leaf]
    gradients: Any  # an array of addresses
    trains: bool = False


class Pass:
    """A forward and its backwards. The hooks of its tensors hold it: without them, no backward can come."""

    def __init__(self) -> None:
        self.position = 0  # the least index of the next use
        self.calls: list[Call] = []
        self.read = False  # by torch.autograd.grad: its backward may never come


def _gets_gradient(parameter: nn.Parameter) -> bool:
    """Whether the present backward adds to the parameter's .grad. PyTorch raises if torch.autograd.grad returns the gradient instead."""
    try:
        return bool(_torch._C._will_engine_execute_node(_torch.autograd.graph.get_gradient_edge(parameter).node))
    except RuntimeError:
        return False


@dataclass(eq=False, slots=True)
class Call:
    """A call of a module in a training pass."""

    use: Use
    begun: bool = False  # its backward


def tensors_in(output: Any) -> list[Any]:
    """Those that need a gradient."""
    if isinstance(output, torch.Tensor):
        return [output] if output.requires_grad else []
    leaves = pytree.tree_leaves(output)
    for leaf in [leaf for leaf in leaves if hasattr(leaf, "__dict__") and not isinstance(leaf, torch.Tensor)]:
        leaves += pytree.tree_leaves(vars(leaf))  # an object of a class of the model's own
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]


class Passes:
    """The state of the present pass, and the hooks."""

    scaled = False  # True while engine.backward runs, which scales the loss

    def __init__(self, model: nn.Module, handle: int, free: bool, prepare: Callable[[Any, Any], None]) -> None:
        self.model, self.handle, self.free, self.prepare = model, handle, free, prepare
        self.cast: Any = None  # a function that casts the model's own inputs
        self.device: torch.device | None = None  # the engine's GPU
        self.stream = 0  # there: the one that the engine knows
        self.uses: dict[nn.Module, list[Use]] = {}
        self.leaves: list[Leaf] = []
        self.held: Use | None = None  # parameters of the whole model
        self.root: Use | None = None  # a unit without parameters: its begin brings the held units
        self.mode: int | None = None  # of the engine's open pass
        self.micro = 0  # training passes of this step
        self.limit = 0  # the most that micro may be
        self.unseen = False  # a backward has ended since the last call of step
        self.current: Pass | None = None
        self.training: Callable[[], Pass | None] = lambda: None
        self.calls: list[Call] = []  # of the training pass
        self.waiting = False  # it waits for its backward
        self.in_root = self.in_backward = False
        self.reads = False  # the backward gives parameters no gradients
        self.ignored = False  # forwards that the engine ignores
        self.last = _FIRST  # the index of the use whose backward has begun
        self.open: list[tuple[Call, bool]] = []  # calls, and whether they are backward
        _torch.compiler.reset()  # code that was compiled before does not call the hooks
        self.hooks = [
            model.register_forward_pre_hook(_disable(self._root_pre), prepend=True, with_kwargs=True),
            model.register_forward_hook(_disable(self._root_post)),
        ]

    def attach(self) -> None:
        for module in self.uses.keys() - {self.model}:  # the model's own hooks call these
            self.hooks.append(module.register_forward_pre_hook(_disable(self._unit_pre), prepend=True))
            self.hooks.append(module.register_forward_hook(_disable(self._unit_post)))

    # ---- passes ----

    def _begin(self, mode: int) -> Pass:
        """Opens a pass, after it has finished what the pass before has left open."""
        if self.device and torch.cuda.current_stream(self.device).cuda_stream != self.stream:
            raise ZeroError(
                "zero: the model runs on another CUDA stream than the engine's, which was current at fully_shard: call both under the "
                "same torch.cuda.stream"
            )
        self.settle()
        if self.waiting and mode == TRAIN:
            before = self.training()
            if before and before.read and not self.free:
                self.training = lambda: None
                self.settle()
            elif not self.free:
                raise ZeroError(
                    "zero: a forward with gradients comes before the backward of the one before: call backward first, evaluate "
                    "under torch.no_grad(), or give fully_shard free_order=True for two forwards and one backward"
                )
            elif before:  # both forwards are one pass
                self._resume()
                self.current = before
                return before
        if mode == TRAIN:
            self.drop_cleared()
        if mode == TRAIN and self.micro == self.limit:
            raise ZeroError(
                "zero: a forward comes after the last backward of a step: call engine.step() before it, or "
                "engine.optimizer.zero_grad() to drop what the step has"
            )
        lib.zero_micro_begin(self.handle, mode)
        torch.clear_autocast_cache()  # its copies of weights have nodes of an earlier pass, or old values
        self.mode = mode
        self.current = begun = Pass()
        if mode == TRAIN:
            self.micro += 1
            self.waiting = True
            self.training, self.calls = weakref.ref(begun), begun.calls
        self._bring_held(self.root)
        return begun

    def _bring_held(self, use: Use | None) -> None:
        """The parameters of held units come with each use."""
        if self.held and use:
            lib.zero_forward_begin(use.handle)
            self.hide_all()
            for leaf in self.held.leaves:
                leaf.show()
            lib.zero_forward_end(use.handle)

    def _resume(self) -> None:
        """Back from an evaluation that has interrupted the training pass."""
        if self.mode == TRAIN:
            return
        self.settle()
        self._take_up()

    def _take_up(self) -> None:
        lib.zero_micro_resume(self.handle)
        self.mode = TRAIN
        self._bring_held(self.calls[-1].use if self.calls and not self.free else self.root)

    def settle(self) -> bool:
        """Drops a pass that has ended with an exception, and one whose result no longer exists. Returns whether it was the former."""
        broken = bool(self.open) or self.in_root or self.in_backward
        if broken:
            self.cancel()
        if self.waiting and not self.training():
            if self.mode == EVAL:
                self.cancel()
            self.cancel()
        return broken

    def cancel(self) -> None:
        """Drops the open pass: an evaluation, or a training pass. After its backward has begun, or without one: the whole step."""
        lib.zero_micro_cancel(self.handle)
        self.hide_all()
        self.open.clear()
        self.in_root, self.in_backward, self.reads, self.current = False, False, False, None
        if self.mode == EVAL:
            self.mode = None
            return
        self.micro = self.micro - 1 if self.waiting else 0
        self.mode, self.waiting, self.unseen = None, False, False
        self._clear_grads()

    def restart(self) -> None:
        """Drops the step so far: an open pass, and the micro-steps before it."""
        self.settle()
        while self.micro:
            self.cancel()

    def _cleared(self) -> bool:
        """Whether the program has cleared .grad, as zero_grad does, between a backward and the next call of step: then the step so far is
        dropped. To clear .grad after a call of step drops nothing: a loop may do both after each backward."""
        return self.unseen and all(leaf.parameter.grad is None for leaf in self.leaves)

    def drop_cleared(self) -> None:
        if self._cleared():
            self.restart()

    def _clear_grads(self) -> None:
        for leaf in self.leaves:
            leaf.parameter.grad = None

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()
        for leaf in (leaf for leaf in self.leaves if leaf.storage):
            leaf.message = f"zero: parameter {leaf.name}: its engine is closed; take engine.state_dict() before"
            leaf.shown = 1
            leaf.hide()

    def hide_all(self) -> None:
        for leaf in self.leaves:
            if leaf.shown:
                leaf.shown = 1
                leaf.hide()

    # ---- forward ----

    def _root_pre(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.ignored or module is not self.model:  # a copy of the model has these hooks, too
            return None
        if _in_autograd() == -1:
            self.prepare(args, kwargs)
            self._begin(TRAIN if torch.is_grad_enabled() else EVAL)
            self.in_root = True
        if module in self.uses:
            self._unit_pre(module, args)
        return self.cast(module, args, kwargs) if self.cast else None

    def _root_post(self, module: nn.Module, args: Any, output: Any) -> None:
        if module is not self.model:
            return
        if module in self.uses:
            self._unit_post(module, args, output)
        if self.ignored or _in_autograd() != -1:
            return
        if self.mode == TRAIN:
            owner = self.current
            for t in tensors_in(output):
                t.register_hook(lambda grad: self._enter_backward(owner))
        elif self.root:
            self.hide_all()
        self.in_root, self.current = False, None

    def _unit_pre(self, module: nn.Module, args: Any) -> None:
        if self.ignored or module not in self.uses:
            return
        if _in_autograd() != -1:
            self._recompute(module)
            return
        mode = TRAIN if torch.is_grad_enabled() else EVAL
        now = self.current or (self.training() if self.waiting and self.mode == TRAIN else None)
        if not now or (not self.in_root and (self.mode, mode) == (EVAL, TRAIN)):
            now = self._begin(mode)
        use = next((use for use in self.uses[module] if self.free or use.index >= now.position), None)
        if use is None:  # the turn of all of them is over in this pass
            if self.in_root and self.mode == TRAIN:
                raise ZeroError(
                    f"zero: {self.uses[module][0].name} is called more often or later than in the forward that gave the order "
                    "of units; give fully_shard free_order=True"
                )
            now = self._begin(EVAL if self.in_root else mode)
            use = self.uses[module][0]
        call = Call(use)
        self._open(call, False)
        self.current, now.position = now, use.index + 1
        if self.mode == TRAIN:
            now.calls.append(call)

    def _unit_post(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.ignored or not self.open:
            return
        call, backward = self.open[-1]
        if backward or call.use.module is not module:
            return
        self._end()
        if self.mode == TRAIN:
            owner = self.current
            for t in tensors_in(output) if torch.is_grad_enabled() else ():
                t.register_hook(lambda grad: self._fire(call, owner))
            if not self.in_root and not self.in_backward:
                self.current = None

    # ---- backward ----

    def _enter_backward(self, owner: Pass | None) -> None:
        """The first event of a backward, in autograd's outermost one."""
        if self.in_backward:
            return
        if not owner or owner is not self.training() or not (self.waiting or (self.free and self.mode == TRAIN)):
            raise ZeroError(
                "zero: a backward comes after that of its pass, or after a later pass: give fully_shard free_order=True "
                "for several backwards of one forward"
            )
        # A backward to chosen inputs, of which none is a parameter. PyTorch refuses reentrant checkpoints in it: they hide parameters.
        reads = not _torch.autograd._is_checkpoint_valid() and not any(_gets_gradient(leaf.parameter) for leaf in self.leaves)
        if reads and self.in_root:
            raise ZeroError("zero: torch.autograd.grad is called inside of the model's forward: call it on what the model returns")
        if reads:
            self._begin(EVAL)
            owner.read = self.reads = True
        else:
            if not Passes.scaled and lib.zero_engine_loss_scale(self.handle) != 1:
                raise ZeroError("zero: loss.backward() lacks the loss scale of fp16: call engine.backward(loss)")
            if self._cleared():
                raise ZeroError("zero: gradients are cleared between a forward and its backward: call zero_grad() before the forward")
            self._resume()
            self.waiting = False
            self._clear_grads()
        self.current, self.in_backward, self.last = owner, True, _FIRST
        _torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _fire(self, call: Call, owner: Pass | None) -> None:
        """A gradient comes to an output of this call."""
        self._enter_backward(owner)
        if call.begun or (not self.free and call.use.index > self.last):
            return  # the latter: of a tensor that the call only passes on
        while self.open:
            self._end()
        self._open(call, True)
        call.begun, self.last = True, call.use.index

    def _recompute(self, module: nn.Module) -> None:
        """A checkpoint runs the module's forward again."""
        self._enter_backward(self.training())
        if self.open and self.open[-1][1] and self.open[-1][0].use.module is module:
            return  # inside its own backward: the parameters are there
        if self.open and not self.free:
            self._end()
        calls = [c for c in (self.current.calls if self.current else ()) if c.use.module is module]
        left = [c for c in calls if not c.begun]
        name = self.uses[module][0].name
        several = f"zero: {name} is recomputed in a checkpoint around several units; give fully_shard free_order=True"
        if not left:
            raise ZeroError(several if calls and not self.free else f"zero: {name} is called in a backward, but not in its forward")
        try:
            self._open(left[-1], False)
        except ZeroError as error:
            if self.free or error.code != "ZERO_E_ORDER":
                raise
            raise ZeroError(several) from error

    def _finish(self) -> None:
        """Autograd has ended."""
        while self.open:
            self._end()
        for call in self.current.calls if (self.free or self.reads) and self.current else ():  # another backward may come
            call.begun = False
        if self.reads:
            self.hide_all()
            self.in_backward, self.reads, self.current = False, False, None
            return
        if self.root and self.held:
            lib.zero_backward_begin(self.root.handle)
            self._give(self.held)
            lib.zero_backward_end(self.root.handle)
            self.hide_all()
        if not self.free:
            self.mode = None
        self.in_backward, self.current = False, None
        for leaf in self.leaves:
            if leaf.parameter.grad is not None:
                where = f"outside of the backward of its unit {leaf.unit}; give fully_shard units in which it is used"
                raise ZeroError(f"zero: a gradient came to parameter {leaf.name} {where}")
            leaf.parameter.grad = leaf.no_grad
        self.unseen = any(leaf.trains for leaf in self.leaves)

    def empty(self) -> None:
        """A training pass that uses nothing."""
        self._begin(TRAIN)
        self.current = None
        self.finish()

    def finish(self) -> None:
        """After engine.backward(loss): if the loss uses no unit, the gradients of the pass are zero."""
        if self.waiting and not self.in_root and not self.open:
            if self.training():
                self._resume()
            elif self.mode == EVAL:
                self._take_up()
            self.waiting = False
            self._clear_grads()
            for call in reversed([call for call in self.calls if call.use.trains]):
                self._open(call, True)
                self._end()
            self._finish()

    # ---- begin and end of a unit ----

    def _open(self, call: Call, backward: bool) -> None:
        if self.reads and not self.free:  # an evaluation has its order, too
            lib.zero_micro_begin(self.handle, EVAL)
            self._bring_held(self.root)
        (lib.zero_backward_begin if backward and not self.reads else lib.zero_forward_begin)(call.use.handle)
        self.open.append((call, backward))
        for leaf in call.use.leaves:
            leaf.show()

    def _end(self) -> None:
        call, backward = self.open.pop()
        if backward and not self.reads:
            self._give(call.use)
            lib.zero_backward_end(call.use.handle)
        else:
            lib.zero_forward_end(call.use.handle)
        for leaf in call.use.leaves:
            leaf.hide()

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
