"""Micro-steps and steps."""

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from zero import _header
from zero._abi import ZeroError, lib
from zero._declared import Declared, StepInfo
from zero._leaf import Leaf, read_owned
from zero._open import CHANGED, UNTRAINED
from zero._pass import Passes
from zero._private import current_graph_task

_torch: Any = torch  # functions without types


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.zero_scale = scale
        return loss * scale

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        Passes.scale = ctx.zero_scale, current_graph_task()
        return grad * ctx.zero_scale, None


def check_plain(loss: torch.Tensor) -> None:
    """No loss is scaled twice. This sees what the last operations have made of scaled ones."""
    nodes: list[Any] = [loss.grad_fn]
    for node in itertools.islice(nodes, 32):  # which grows
        if hasattr(node, "zero_scale"):
            raise ZeroError("zero: this loss is scaled already: call loss.backward()")
        nodes += [before for before, _ in getattr(node, "next_functions", ())]


class Training(Declared):
    """What a loop calls."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """loss.backward(), times the loss scale of fp16. The engine takes the mean over micro-steps and ranks."""
        if self._passes.ignores():
            raise ZeroError("zero: the engine trains nothing inside of full_parameters() or gathered(): call backward outside")
        check_plain(loss)
        passes, inputs = self._passes, options.get("inputs")
        inputs = [inputs] if isinstance(inputs, torch.Tensor) else inputs
        passes.end_broken()
        starts = passes.awaits_backward() and (inputs is None or any(leaf.parameter is t for leaf in passes.leaves for t in inputs))
        if starts:
            passes.check_not_cleared()
        try:
            scale = lib.zero_engine_loss_scale(self._handle)
            Passes.scale = scale, None
            if starts:
                passes.start()
            with _torch.autograd.set_multithreading_enabled(False):  # Ctrl-C comes to this thread alone, between nodes
                (loss * scale if scale != 1 else loss).backward(**options)
            Passes.scale = None
            if starts:
                passes.finish()  # the last line: the program cannot know whether a backward that has raised was whole
        except BaseException:
            Passes.scale = None
            passes.in_backward |= starts
            raise

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss times the loss scale of fp16: engine.scaled(loss).backward() is engine.backward(loss)."""
        check_plain(loss)
        found: torch.Tensor = Scaled.apply(loss, self.loss_scale)
        return found

    def step(self, *, last: bool | None = None) -> StepInfo:
        """After gradient_accumulation_steps micro-steps: clips and updates. Else nothing: a loop may call it after each micro-step. Collective.
        `last`, where the program decides ("gradient_accumulation_by_program", or fewer micro-steps than that): True, no more micro-steps
        come; False, more come. The mean is the sum divided by gradient_accumulation_steps."""
        passes, Passes.scale = self._passes, None  # a backward that has raised may have left one
        if not self._filled:
            raise ZeroError("zero: there was no forward of the model; to use parts of it, call engine.commit(...) first")
        if passes.settle():
            dropped = "and is dropped; repeat it" if passes.done else "and all micro-steps of this step are dropped; repeat them"
            raise ZeroError(f"zero: the last pass ended with an exception {dropped} before the step")
        if passes.whole or any(leaf.away for leaf in passes.leaves):
            raise ZeroError(
                "zero: a step inside of gathered() or full_parameters() would leave their copies behind: leave them before it"
            )
        passes.drop_cleared()
        given = passes.done
        while last and not self._by_program and 0 < passes.done < self.accumulation_steps:
            passes.empty()
        passes.check_seen()
        passes.unseen = False
        begun = passes.done + passes.waiting
        if self._unsynced or last is False or begun < (1 if last and self._by_program else self.accumulation_steps):
            return replace(self.info, skipped=False, overflow_unit="", updated=False, repeated=False)
        self._check_model()
        passes.sleep()
        still = self._still()
        self._stepping = self._samples + given * self.micro_batch * self.size
        raw = self.optimizer.update(self._handle)
        passes.lent.clear()
        self._samples, passes.done, passes.mode = self._stepping, 0, None
        self._stepping = None
        self._put_owned(still)
        for leaf in passes.leaves:
            leaf.came = False
        if not self._warned:
            self._warn_unused()
            if self._compared:
                self._compared.tell()
        unit = (raw.overflow_unit or b"").decode()
        self.info = StepInfo(raw.step, raw.grad_norm, raw.lr, bool(raw.skipped), raw.loss_scale, unit, True, bool(raw.repeated))
        return self.info

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, no micro-step is the last of its step, as under DistributedDataParallel.no_sync: step() does nothing."""
        self._unsynced += 1
        try:
            yield
        finally:
            self._unsynced -= 1

    def gradient(self, parameter: str | nn.Parameter) -> torch.Tensor:
        """The whole gradient of a parameter, which may be named as the model names it: fp32, on the CPU, on every rank; the mean over ranks and
        micro-steps, without loss scale, not clipped. Between the last backward of a step and step(); where the program decides which one is
        the last, this says so. Collective."""
        self._passes.settle()
        found = (
            parameter
            if isinstance(parameter, nn.Parameter)
            else dict(self.model.named_parameters(remove_duplicate=False)).get(parameter)
        )
        leaf = next((leaf for leaf in self._passes.leaves if leaf.parameter is found), None)
        if leaf is None:
            raise ZeroError(
                f"zero: engine.gradient: the engine has no parameter {parameter!r}: give a name of model.named_parameters()"
            )
        self._passes.drop_cleared()
        return self._read(leaf, _header.ZERO_GRAD)

    @property
    def loss_scale(self) -> float:
        """That of fp16 in the next backward; else 1."""
        return float(lib.zero_engine_loss_scale(self._handle))

    @property
    def samples(self) -> int:
        """Used by the steps so far, those before a load included."""
        self._count_step()
        return self._samples

    def _check_model(self) -> None:
        """The engine trains the parameters that it knows, as it knows them."""
        leaves = {leaf.parameter: leaf for leaf in self._passes.leaves}
        for name, p in self.model.named_parameters():
            leaf = leaves.get(p)
            if leaf and leaf.storage != p.untyped_storage()._cdata:
                change = f"the data of parameter {name} are others"
            elif not p.requires_grad or not p.numel() or (leaf.trains if leaf else p in self._ignored):
                continue
            elif leaf:
                raise ZeroError(UNTRAINED.format(name))
            else:
                change = f"parameter {name} is new"
            raise ZeroError(f"zero: {change} {CHANGED}")

    def _still(self) -> list[tuple[Leaf, int, int, torch.Tensor]]:
        """What this rank stores of parameters that the program has frozen after the first forward: a step leaves them, as PyTorch's optimizers
        leave what has no gradient."""
        leaves = [leaf for leaf in self._passes.leaves if leaf.trains and not leaf.parameter.requires_grad]
        for leaf, ranks in zip(leaves, self._sum([leaf.came for leaf in leaves]), strict=True):  # a gradient on one rank counts on all
            leaf.came = ranks > 0
        leaves = [leaf for leaf in leaves if not leaf.came]
        if not leaves or self.optimizer.pieces:
            return []
        if self._early:
            raise ZeroError(
                f"zero: parameter {leaves[0].name} is frozen, and zero_optimization.update_in_backward has updated it already: leave that out"
            )
        lib.zero_engine_flush(self._handle)
        found = []
        for leaf, kind in itertools.product(leaves, (_header.ZERO_PARAM, _header.ZERO_STATE0, _header.ZERO_STATE1)):
            with suppress(ZeroError):  # an optimizer may have fewer states
                found.append((leaf, kind, *read_owned(leaf, kind)))
        return found

    def _put_owned(self, found: list[tuple[Leaf, int, int, torch.Tensor]]) -> None:
        if found:
            lib.zero_engine_flush(self._handle)
            for leaf, kind, first, values in found:
                lib.zero_param_put_owned(leaf.handle, kind, values.data_ptr(), first, values.numel())
            lib.zero_engine_written(self._handle)

    def _warn_unused(self) -> None:
        self._warned = True
        names = [leaf.name for leaf in self._passes.leaves if leaf.parameter.requires_grad and not leaf.given]
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            warnings.warn(f"zero: no gradient came for {', '.join(names[:5])}{more}: it counts as zero", stacklevel=3)

    @property
    def steps(self) -> int:
        """Updates done, those before a load included."""
        return int(lib.zero_engine_steps(self._handle))

    def _get(self, leaf: Leaf, averages: bool = False) -> torch.Tensor:
        """The fp32 weights of a parameter. `averages`: their averages; a frozen parameter has none, and its weights do not change."""
        return self._read(leaf, _header.ZERO_EMA if averages and leaf.trains else _header.ZERO_PARAM)

    def _read(self, leaf: Leaf, kind: int) -> torch.Tensor:
        out = torch.empty(leaf.parameter.shape, dtype=torch.float32, device="cpu")
        lib.zero_param_get(leaf.handle, kind, out.data_ptr(), 0, out.numel())
        return out
