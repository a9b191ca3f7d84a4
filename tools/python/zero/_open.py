"""The pass that is open in the engine, and what an exception has left of it.

    no pass --forward--> TRAIN --it returns--> TRAIN, waiting --backward--> no pass, one more is done
                           |                         |
                           |                         an evaluation: EVAL; the backward resumes the pass
                           an exception, or no backward: dropped

1. A change of the engine's state sets `busy`, calls C, records what C has done, and clears `busy`. An exception may come at any bytecode,
   as that of Ctrl-C does. The next call sees what it has left, and `settle` ends that.
2. C knows how many training passes there are (zero_engine_passes). `done` and `waiting` say how many count; the others are cancelled.
3. An exception in a forward drops the pass, one in a backward the step, and one in an evaluation the evaluation alone.
"""

import os
import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zero._abi import ZeroError, lib
from zero._header import ZERO_EVAL as EVAL
from zero._header import ZERO_TRAIN as TRAIN
from zero._leaf import Leaf
from zero._private import compiles_backward, replays_graphs
from zero._private import current_graph_task as in_autograd

CHANGED = "since the model's first forward; change a model before it, or make another engine"
UNTRAINED = (
    "zero: parameter {} is to be trained, and was not when it moved to the engine, which has no memory for its moments: let it be trained "
    "then (requires_grad, and a group of the optimizer), and freeze it afterwards"
)
FREE = 'fully_shard free_order=True (in a configuration of DeepSpeed "stage3_prefetch_bucket_size": 0)'
FIRST = 1 << 32  # above the index of each use


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
    lends: bool = False  # the engine reads its gradients where autograd has made them


@dataclass(eq=False, slots=True)
class Call:
    """A call of a module in a training pass."""

    use: Use
    begun: bool = False  # its backward
    inside: int = 0  # calls of the module inside of this one


class Pass:
    """A forward and its backwards. What autograd saves in it holds it: without that, no backward can come."""

    def __init__(self) -> None:
        self.position = 0  # the least index of the next use
        self.read = False  # by torch.autograd.grad: its backward may never come


class OpenPass:
    def __init__(self, handle: int, free: bool, count: Callable[[], None]) -> None:
        """`count`: counts a step that C has done, if an exception came before that was counted."""
        self.handle, self.free, self.count, self.process = handle, free, count, os.getpid()
        self.device: torch.device | None = None  # the engine's GPU
        self.stream = 0  # there: the one that the engine knows
        self.leaves: list[Leaf] = []
        self.uses: dict[nn.Module, list[Use]] = {}
        self.held: Use | None = None  # parameters of the whole model
        self.root: Use | None = None  # a unit without parameters: its begin brings the held units
        self.busy: int | None = None  # the mode of the pass that C changes
        self.mode: int | None = None  # of the open pass
        self.limit: int | None = 0  # the most micro-steps of a step; None: the program decides
        self.done = 0  # those of this step whose backward has ended
        self.waiting = False  # a training pass waits for its backward
        self.training: Callable[[], Pass | None] = lambda: None
        self.calls: list[Call] = []  # of the training pass
        self.todo: list[Call] = []  # those whose backward may come
        self.current: Pass | None = None
        self.in_root = self.in_backward = False
        self.reads = False  # the backward gives parameters no gradients
        self.last = FIRST  # the index of the use whose backward has begun
        self.lent: list[list[torch.Tensor]] = []  # gradients that the engine may still read, of a unit each
        self.open: list[tuple[Call, bool]] = []  # calls, and whether they are backward
        self.now: Call | None = None  # whose backward is open
        self.unseen = False  # a backward has ended since the last call of step
        self.parked = False  # addresses may be others
        self.whole = False  # the parameters are whole copies, and the engine ignores forwards
        self.awake = False  # below stage 3: all parameters are up to date, and the program may read them
        self.within: list[tuple[Any, Callable[[], None]]] = []  # generators of `with`, and what is to be done after each

    # ---- what an exception has left ----

    def settle(self) -> bool:
        """Ends what an exception has left, and drops a pass whose result no longer exists. Returns whether there was the former."""
        broken = self.end_broken()
        if self.parked:
            self.come_back()
        if self.waiting and not self.training():
            self.drop()
        return broken

    def end_broken(self) -> bool:
        if os.getpid() != self.process:
            raise ZeroError(
                "zero: the engine is the parent process's: a forked child has none of its threads; make another engine there"
            )
        self.count()
        self.leave()
        broken = self.busy is not None or bool(self.open) or self.in_root or self.in_backward or self.reads
        if broken:
            self._cancel()
        self.unhook()
        return broken

    def leave(self) -> None:
        """After a `with` of the engine, also if an exception has come into its end."""
        while self.within and self.within[-1][0].gi_frame is None:
            with suppress(ZeroError):  # it has ended
                self.within[-1][1]()
            self.within.pop()

    def drop(self) -> None:
        """Drops a training pass that waits for its backward."""
        self.busy = TRAIN
        self._cancel()

    def restart(self) -> None:
        """Drops the step so far: an open pass, and the micro-steps before it."""
        self.settle()
        self.busy = TRAIN
        self.done = 0
        self._cancel()

    def _cancel(self) -> None:
        """An exception may come here, too: then all of it is done again."""
        backward = self.in_backward and not self.reads
        evaluates = not backward and (self.reads or (self.mode if self.busy is None else self.busy) == EVAL)
        if backward:
            self.done = 0
        if not evaluates:
            self.waiting = False
        elif self.open or self.busy is not None:
            try:
                lib.zero_micro_begin(self.handle, EVAL)
            except ZeroError:  # a unit is in use
                lib.zero_micro_cancel(self.handle)
            self.mode = EVAL
        while lib.zero_engine_passes(self.handle) > self.done + self.waiting:
            lib.zero_micro_cancel(self.handle)
        self.open.clear()
        self.guard_all()
        self.now = self.current = None
        if not evaluates:
            self.mode = None
            if not self.done:
                self.clear_grads()
                self.unseen = False
        self.in_root = self.in_backward = False
        self.reads = False
        self.busy = None

    def unhook(self) -> None:
        """Takes back the hooks on saved tensors."""

    # ---- parameters that are whole at all times ----

    def is_inside(self) -> bool:
        """In a forward or a backward."""
        return self.in_root or bool(self.open) or self.in_backward or self.busy is not None or in_autograd() != -1

    def wake(self) -> None:
        """Below stage 3: this rank waits until its parameters are up to date, as an evaluation does; not inside of a forward or backward."""
        if self.awake or self.parked or self.is_inside():
            return
        self.read_units(self.leaves)
        self.awake = True
        for leaf in self.leaves:
            leaf.awake = True
            if not leaf.shown:
                leaf.rest()

    def sleep(self) -> None:
        """A step is about to change the parameters, while the program goes on."""
        for leaf in self.leaves if self.awake else ():
            leaf.awake = False
            if not leaf.shown:
                leaf.rest()
        self.awake = False

    def read_units(self, leaves: Collection[Leaf]) -> dict[Leaf, torch.Tensor]:
        """An evaluation of the units with these, in their order; a copy of each, as the model computes with it."""
        wanted, copies = set(leaves), dict[Leaf, torch.Tensor]()

        def take(found: list[Leaf]) -> None:
            copies.update({leaf: leaf.tensor.detach().clone() for leaf in found if leaf in wanted and leaf.tensor is not None})
            wanted.difference_update(found)

        self.begin(EVAL)
        take(self.held.leaves if self.held else [])
        for use in sorted((use for uses in self.uses.values() for use in uses), key=lambda use: use.index):
            if not wanted.isdisjoint(use.leaves):
                self.open_use(Call(use), False)
                take(use.leaves)
                self.end_use()
        self.hide_all()
        self.current = None
        return copies

    def come_back(self) -> None:
        """The parameters have the engine's memory again, after zero_engine_unpark (while the engine is parked, C refuses), or as whole copies."""
        for leaf in self.leaves:
            leaf.come_back()
        self.parked = self.whole = False

    # ---- gradients of the program ----

    def cleared(self) -> bool:
        """Whether the program has cleared .grad, as zero_grad does, between a backward and the next call of step: then the step so far is
        dropped. To clear .grad after a call of step drops nothing: a loop may do both after each backward."""
        return self.unseen and all(leaf.parameter.grad is None for leaf in self.leaves)

    def drop_cleared(self) -> None:
        if self.cleared():
            self.restart()

    def clear_grads(self) -> None:
        for leaf in self.leaves:
            leaf.parameter.grad = None
            leaf.came &= self.done > 0

    # ---- passes ----

    def check_eager(self) -> None:
        if compiles_backward():
            raise ZeroError(
                "zero: compiled autograd is on, whose backwards do not call what brings parameters: set torch._dynamo.config.compiled_autograd "
                "to False before fully_shard; a model that torch.compile has made works without it"
            )

    def _side_stream(self) -> Any:
        """The current stream of the GPU, if it is another one than the engine's."""
        stream = torch.cuda.current_stream(self.device)
        return stream if stream.cuda_stream != self.stream else None

    def begin(self, mode: int) -> Pass:
        """Opens a pass, after it has ended what the pass before has left open."""
        self.check_eager()
        if self.device and self._side_stream():
            raise ZeroError(
                "zero: the model runs on another CUDA stream than the engine's, which was current at fully_shard: call both under the "
                "same torch.cuda.stream"
            )
        if self.device and torch.cuda.is_current_stream_capturing():
            raise ZeroError(
                "zero: a CUDA graph is captured here, and a replay would not move parameters: capture parts of a unit, as "
                'torch.compile(mode="reduce-overhead") does'
            )
        self.settle()
        before = self.training()
        if before and self.waiting and mode == TRAIN:
            if self.free:  # both forwards are one pass
                self.resume()
                self.current = before
                return before
            self.drop()  # a backward of it raises
        if mode == TRAIN:
            self.drop_cleared()
            if self.done == self.limit:
                raise ZeroError(
                    "zero: a forward comes after the last backward of a step: call engine.step() before it, or "
                    "engine.optimizer.zero_grad() to drop what the step has, or let the program decide how many micro-steps a step has "
                    "(gradient_accumulation_by_program in the configuration)"
                )
            if not self.unseen:
                self.clear_grads()
        torch.clear_autocast_cache()  # its copies of weights have nodes of an earlier pass, or old values
        begun = Pass()
        self.busy = mode
        try:
            lib.zero_micro_begin(self.handle, mode)
        except ZeroError:  # refused: nothing has changed
            self.busy = None
            raise
        self.mode, self.current = mode, begun
        if mode == TRAIN:
            self.training, self.calls, self.waiting = weakref.ref(begun), [], True
        self._bring_held(self.root)
        self.busy = None
        return begun

    def resume(self) -> None:
        """Back from an evaluation that has interrupted the training pass."""
        if self.mode != TRAIN:
            self.busy = TRAIN
            lib.zero_micro_resume(self.handle)
            self.mode = TRAIN
            self._bring_held(self.calls[-1].use if self.calls and not self.free else self.root)
            self.busy = None

    def _bring_held(self, use: Use | None) -> None:
        """The parameters of held units come with each use."""
        if self.held and use:
            lib.zero_forward_begin(use.handle)
            self.hide_all()
            for leaf in self.held.leaves:
                leaf.show()
            lib.zero_forward_end(use.handle)

    def guard_all(self) -> None:
        for leaf in self.leaves:
            if leaf.storage:
                leaf.shown = 1
                leaf.hide()

    def hide_all(self) -> None:
        for leaf in self.leaves:
            if leaf.shown:
                leaf.shown = 1
                leaf.hide()

    # ---- uses ----

    def open_use(self, call: Call, backward: bool) -> None:
        self.busy = self.mode
        try:
            if self.reads and not self.free:  # an evaluation has its order, too
                lib.zero_micro_begin(self.handle, EVAL)
                self._bring_held(self.root)
            (lib.zero_backward_begin if backward and not self.reads else lib.zero_forward_begin)(call.use.handle)
        except ZeroError:
            self.busy = None
            raise
        if backward and not self.reads and call.use.lends:
            del self.lent[:-1]
        self.open.append((call, backward))
        for leaf in call.use.leaves:
            leaf.show()
        if backward:
            call.begun, self.last, self.now = True, call.use.index, call
        self.busy = None

    def end_use(self) -> None:
        self.busy = self.mode
        call, backward = self.open[-1]
        if backward and not self.reads:
            self._give(call.use)
            lib.zero_backward_end(call.use.handle)
        else:
            lib.zero_forward_end(call.use.handle)
        self.open.pop()
        for leaf in call.use.leaves:
            leaf.hide()
        self.now = self.busy = None

    def end_uses(self) -> None:
        while self.open:
            self.end_use()

    def _give(self, use: Use) -> None:
        """The gradients of a unit, which autograd has made; None is zero."""
        if not use.trains:
            return
        alive, copies = [], use.lends and replays_graphs(self.device)
        for i, leaf in enumerate(use.leaves):
            grad = leaf.parameter.grad
            if grad is not None:
                leaf.parameter.grad = None
                leaf.given = leaf.came = True
                grad = (grad.to_dense() if grad.is_sparse else grad).to(leaf.parameter, copy=copies).contiguous()
                alive.append(grad)
            use.gradients[i] = grad.data_ptr() if grad is not None else None
        side = self.device and self._side_stream()  # of the forward that this is the backward of
        if side:
            streams: Any = torch.cuda
            own = streams.ExternalStream(self.stream, self.device) if self.stream else streams.default_stream(self.device)
            own.wait_stream(side)
            for grad in alive:
                grad.record_stream(own)
        if use.lends:
            self.lent.append(alive)
        lib.zero_unit_give_grads(use.handle, use.gradients)

    # ---- backward ----

    def awaits_backward(self) -> bool:
        return self.waiting or (self.free and self.mode == TRAIN)

    def check_not_cleared(self) -> None:
        self.check_eager()
        if self.cleared():
            raise ZeroError("zero: gradients are cleared between a forward and its backward: call zero_grad() before the forward")

    def check_seen(self) -> None:
        for leaf in self.leaves if self.waiting else ():
            if leaf.parameter.grad is not None and leaf.parameter.grad is not leaf.no_grad:
                how = "by a backward that has read nothing of the model's forward: call engine.backward(loss)"
                raise ZeroError(f"zero: a gradient came to parameter {leaf.name} {how} in place of loss.backward()")

    def start(self) -> None:
        """A backward begins. Gradients count that have come since the forward: autograd reaches some before it reads anything."""
        self.in_backward = True  # from here on an exception drops the step
        self.resume()
        for leaf in self.leaves:
            if leaf.parameter.grad is leaf.no_grad:
                leaf.parameter.grad = None
        self.waiting = False
        self.current, self.last, self.todo = self.training(), FIRST, self.calls.copy()

    def deliver(self, until: Call | None = None) -> None:
        """Gives the gradients of the calls after `until` that no node has read from. So all ranks begin the backwards of the same units, and a
        gradient of zero counts as one."""
        came = [leaf for leaf in self.leaves if leaf.parameter.grad is not None] if self.free else []
        nothing = not came and not any(call.begun for call in self.calls)
        while self.todo and (call := self.todo.pop()) is not until:
            due = not self.free or nothing or any(leaf.parameter.grad is not None for leaf in call.use.leaves)
            if due and not call.begun and call.use.trains:
                self.open_use(call, True)
                self.end_use()

    def finish(self) -> None:
        """Autograd has ended."""
        self.end_uses()
        if self.reads:
            self._finish_reads()
            return
        self.deliver()
        if self.free:
            self._forget_begun()
        if self.root and self.held:
            self.busy = TRAIN
            lib.zero_backward_begin(self.root.handle)
            self._give(self.held)
            lib.zero_backward_end(self.root.handle)
            self.hide_all()
            self.busy = None
        for leaf in self.leaves:
            if leaf.parameter.grad is not None:
                if not leaf.trains:
                    raise ZeroError(UNTRAINED.format(leaf.name))
                where = f"outside of the backward of its unit {leaf.unit}; give fully_shard units in which it is used"
                raise ZeroError(f"zero: a gradient came to parameter {leaf.name} {where}")
        for leaf in self.leaves:
            leaf.seal()
        self.unseen = any(leaf.trains for leaf in self.leaves)
        self.done = lib.zero_engine_passes(self.handle)
        if not self.free:
            self.mode = None
        self.current = None
        self.in_backward = False

    def _finish_reads(self) -> None:
        self._forget_begun()
        self.hide_all()
        self.current = None
        self.in_backward = False
        self.reads = False

    def _forget_begun(self) -> None:
        """Another backward may come."""
        for call in self.calls:
            call.begun = False

    def empty(self) -> None:
        """A training pass that uses nothing."""
        self.begin(TRAIN)
        self.start()
        self.finish()
