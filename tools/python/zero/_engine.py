"""A torch.nn.Module on the engine: what a user calls."""

import ctypes as C
import itertools
import json
import logging
import os
import secrets
import socket
import sys
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from zero import _abi, _header, _units
from zero._abi import ZeroError, lib
from zero._leaf import Leaf
from zero._open import Use
from zero._pass import Passes
from zero._private import NamedMemberAccessor, pytree
from zero._weights import Init, first_value, first_values, initialised, write_safetensors

logger = logging.getLogger("zero")
_torch: Any = torch  # functions without types
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_TIERS = ("device", "cpu", "nvme")
_models: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # on engines


_log = _abi.callback(_header.zero_log_fn, lambda user, level, line: logger.log(10 * (level + 1), "%s", line.decode(errors="replace")))


@dataclass(frozen=True)
class StepInfo:
    """The results of a step. Between the micro-steps of a step `updated` is False, and all else is of the step before."""

    step: int = 0
    grad_norm: float = float("nan")
    lr: float = float("nan")
    skipped: bool = False
    loss_scale: float = 1.0
    overflow_unit: str = ""
    updated: bool = False
    repeated: bool = False  # updated in the backward, and again, clipped


class Optimizer(torch.optim.Optimizer):
    """The engine's optimizer, as schedulers of torch.optim.lr_scheduler and training loops know one."""

    def __init__(self, engine: "Engine") -> None:
        lr = float(engine.setting("optimizer.params.lr") or 0)
        others = json.loads(engine.setting("param_groups") or "[]")
        groups: list[dict[str, Any]] = [{"params": list(engine.model.parameters()), "lr": lr}]
        groups += [{"params": [], "lr": float(group.get("lr", lr))} for group in others]
        super().__init__(groups, {"lr": lr})
        self.engine = weakref.proxy(engine)
        self.known = [group["lr"] for group in groups]  # to the engine
        self.before: list[float] = []  # the groups' rates at a load: the saved rates hold until others are set, even the same
        self._is_accelerate_prepared = True  # accelerate takes it as it is

    @property
    def step_was_skipped(self) -> bool:
        return bool(self.engine.info.skipped)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The rates; moments are in the engine's checkpoints."""
        super().load_state_dict(state_dict)
        self.known = []

    def loaded(self) -> None:
        """The engine has the saved rates; the next step reports them."""
        self.known, self.before = [], [float(group["lr"]) + 0.0 for group in self.param_groups]
        for group, rate in zip(self.param_groups, self.before, strict=True):
            group["lr"] = rate

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            raise ZeroError("zero: the engine's optimizers evaluate no closure; call step() without one")
        self.engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Between a backward and the next call of step: drops all micro-steps of this step, at the next forward or call of step. Else it
        changes nothing: the engine clears gradients after a step by itself."""
        super().zero_grad()
        passes = self.engine.__dict__.get("_passes")  # its parameters may be newer than the groups
        if passes:
            passes.clear_grads()

    def update(self, handle: int) -> Any:
        """A step at the rates of the groups, which a scheduler may have changed; a schedule in the configuration sets them."""
        rates = [group["lr"] for group in self.param_groups]
        for i, rate in enumerate(rates):
            if self.known[i : i + 1] != [rate] and not any(rate is before for before in self.before):
                lib.zero_engine_set_lr(handle, i, float(rate))
        info = lib.zero_engine_step(handle)
        self.known, self.before = list(info.group_lr)[: len(rates)], []
        for group, rate in zip(self.param_groups, self.known, strict=True):
            group["lr"] = rate
        setattr(self, "_opt_called", True)  # noqa: B010  # for schedulers, which warn without it
        return info


def _default_rename(model: nn.Module) -> Callable[[str], str]:
    """A GPT-2 of transformers has the names of its published files, which `zero train` has too."""
    gpt2 = getattr(getattr(model, "config", None), "model_type", "") == "gpt2"
    return lambda name: name.removeprefix("transformer.") if gpt2 else name


def _meeting_point() -> dict[str, Any]:
    """Where torch.distributed is there, its ranks are the engine's, and share a secret; else see zero_runtime in zero.h. Its broadcast
    over NCCL is on the current GPU."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return {}
    place: list[Any] = [None]
    if dist.get_rank() == 0:
        with socket.create_server(("", 0)) as free:
            host = os.environ.get("MASTER_ADDR") or socket.gethostname()
            place = [{"address": host.encode(), "port": free.getsockname()[1], "secret": secrets.token_hex().encode()}]
    dist.broadcast_object_list(place, src=0)
    return {"rank": dist.get_rank(), "size": dist.get_world_size(), "local_rank": dist.get_node_local_rank(0), **place[0]}


def _names_gpu(device: torch.device | None) -> bool:
    return device is not None and device.type == "cuda" and device.index is not None


def _gpu(parameter: nn.Parameter, device: torch.device | None) -> dict[str, Any]:
    """The fields of zero_runtime for the GPU on which the program computes, and for the stream. The GPU becomes the current one. If
    GPU 0 is current, the program may not have chosen it: unless `device` says so, the rank takes the GPU of its number on the host."""
    place = device or parameter.device
    computes = place.type == "cuda" or (not device and parameter.is_meta and torch.cuda.is_available())
    if not computes and not _torch.cuda.is_initialized():  # the configuration may still choose a GPU
        return {"cuda_default_stream": 1}
    index = torch.cuda.current_device() if place.type != "cuda" or place.index is None else place.index
    torch.cuda.set_device(index)
    stream = torch.cuda.current_stream().cuda_stream
    number = {"local_rank": index} if index or _names_gpu(device) else {}
    return {"cuda": int(computes), "cuda_stream": stream or None, "cuda_default_stream": int(not stream), **number}


def _fails() -> bool:
    """True while an exception is handled, or after one has ended the program: the other ranks may then never make the same call."""
    return sys.exc_info()[0] is not None or getattr(sys, "last_type", None) is not None


def _end(handle: int, process: int) -> None:
    """Ends an engine, once a save in the background is complete. If that save fails, the log says so. After an exception it ends at once,
    and the other ranks receive that. A forked child has neither the engine's threads nor its connections, and leaves it alone."""
    if os.getpid() != process:
        return
    try:
        if not _fails():
            with suppress(ZeroError):
                lib.zero_engine_save_wait(handle)
    finally:
        lib.zero_engine_destroy(handle)


class Engine:
    """A model whose parameters, gradients and optimizer state the engine keeps. zero.fully_shard makes it.

    The parameters move to the engine at the model's first forward, whose calls give the order of units, or before, at
    commit() and at the first method that needs them."""

    def __init__(
        self,
        model: nn.Module,
        config: str | os.PathLike[str] | dict[str, Any],
        units: _units.UnitSpec | None = None,
        *,
        free_order: bool | int = False,
        no_decay: Collection[str] = (),
        init: Init | None = None,
        rename: Callable[[str], str] | None = None,
        device: torch.device | None = None,
        secret: str | None = None,
        total_steps: int = 0,
    ) -> None:
        parameter = next(model.parameters(), None)
        if parameter is None:
            raise ValueError(f"zero: the model, a {type(model).__name__}, has no parameters")
        if model in _models:
            raise ValueError("zero: the model is on an engine already: use that one, or make the model again")
        _units.chosen_modules(model, units)
        self.model, self._spec, self._init, self._no_decay = model, units, init, no_decay
        self._rename = rename or _default_rename(model)
        self.info, self._filled, self._warned = StepInfo(), False, False
        self._saving = False  # in the background, perhaps
        self._declaring = False
        self._samples = 0  # used by the steps so far, those before a load included
        self._stepping: int | None = None  # the samples after the step that has begun
        self._plan: _header.zero_plan | None = None
        gpu = _gpu(parameter, device)
        options = _meeting_point() | gpu | {"discard_shadow": 1, "threads": torch.get_num_threads(), "total_steps": total_steps}
        if secret:
            options["secret"] = secret.encode()
        self._runtime = _header.zero_runtime(log=_log, interrupted=_abi.interrupted, **options)
        handle = lib.zero_engine_open(json.dumps(config) if isinstance(config, dict) else config, self._runtime)
        self._handle: int = handle
        self._closing = weakref.finalize(self, _end, handle, os.getpid())
        try:
            if free_order:
                lib.zero_engine_free_order_within(handle, 0 if free_order is True else free_order)
            self._open(model, device, bool(free_order), gpu.get("cuda_stream") or 0)
            _models.add(model)
        except BaseException:
            self.close()
            raise

    def _open(self, model: nn.Module, device: torch.device | None, free_order: bool, stream: int) -> None:
        handle = self._handle
        index = lib.zero_engine_cuda(handle, None)
        self.device = torch.device("cuda", index) if index >= 0 else torch.device("cpu")
        if _names_gpu(device) and device != self.device:
            raise ValueError(
                f"zero: device is {device}, and this rank's is {self.device}, by device.type or device.index in the configuration or by "
                "LOCAL_RANK: give the same one, or none"
            )
        self.rank: int = lib.zero_engine_rank(handle)
        self.size: int = lib.zero_engine_size(handle)
        self.micro_batch: int = lib.zero_engine_micro_batch(handle)
        self.accumulation_steps: int = lib.zero_engine_accumulation_steps(handle)
        self.train_batch: int = lib.zero_engine_train_batch(handle)
        self.dtype = _DTYPES[lib.zero_engine_dtype(handle)]
        self.optimizer = Optimizer(self)
        self._passes = Passes(model, handle, free_order, self._prepare, self._count_step)
        self._passes.attach_model()
        self._passes.limit = self.accumulation_steps
        if index >= 0:
            self._passes.device, self._passes.stream = self.device, stream
        if self.dtype != torch.float32:
            self._passes.dtype = self.dtype

    # ---- declaring ----

    def commit(self, *args: Any, **kwargs: Any) -> None:
        """Declares the model in the order in which a forward of these arguments uses it, and moves the parameters to the
        engine. Without arguments: the order of registration, or of the model's `dummy_inputs`. Collective."""
        self._prepare(args, kwargs)

    def _prepare(self, args: Any = (), kwargs: Any = None) -> None:
        self._passes.settle()
        grads = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(grads):  # what is made here lasts
            self._commit(args, kwargs)
            if not self._filled:
                self._fill()
                self._attach()

    def _commit(self, args: Any = (), kwargs: Any = None) -> Any:
        if self._plan is None:
            if not args and not kwargs:
                dummies = getattr(self.model, "dummy_inputs", None)  # on the CPU
                kwargs = pytree.tree_map_only(torch.Tensor, lambda t: t.to(self.device), dummies)
            record = _units.trace(self.model, args, kwargs or {}, self.device) if args or kwargs else None
            laid_out = _units.lay_out(self.model, self._spec, record)
            if self._declaring:
                raise ZeroError(
                    "zero: an exception came while the engine learnt the model: call engine.close(), then fully_shard again"
                )
            self._declaring = True
            self._declare(*laid_out)
            self._plan = lib.zero_engine_commit(self._handle)
        return self._plan

    def _declare(self, calls: list[_units.Group], held: dict[str, nn.Parameter]) -> None:
        passes, made = self._passes, dict[nn.Parameter, Leaf]()
        self._slot = _header.zero_slot()  # of all parameters: their addresses are fixed
        if held:
            passes.root = self._add_unit("(model)", self.model, 0, {}, made)
            passes.held = self._add_unit("(held)", self.model, 0, held, made)
            lib.zero_unit_hold(passes.held.handle)
        for index, group in enumerate(calls):
            uses = passes.uses.setdefault(group.module, [])
            if not uses or not passes.free:
                name = (group.name or "model") + (f"#{len(uses) + 1}" if uses else "")
                uses.append(self._add_unit(name, group.module, index, group.parameters, made))
        passes.leaves = list(made.values())

    def _add_unit(
        self, name: str, module: nn.Module, index: int, parameters: dict[str, nn.Parameter], made: dict[nn.Parameter, Leaf]
    ) -> Use:
        handle = lib.zero_engine_add_unit(self._handle, name)
        own = {id(p) for p in parameters.values()}
        modules = frozenset(m for m in module.modules() if any(id(p) in own for p in m._parameters.values()))
        leaves = []
        for i, (key, p) in enumerate(parameters.items()):
            owner = made.get(p)
            leaf = owner or made.setdefault(p, Leaf(self._rename(key), name, p, modules))
            shape = tuple(p.shape) or (1,)
            param = _header.zero_param(
                name=(f"{leaf.name}@{name}" if owner else leaf.name).encode(),
                dims=len(shape),
                flags=(0 if p.requires_grad else _header.ZERO_FROZEN) | (_header.ZERO_NO_DECAY if key in self._no_decay else 0),
                tied_to=leaf.name.encode() if owner else None,
                slot=C.pointer(self._slot),
                shape=(C.c_uint64 * _header.ZERO_DIMS_MAX)(*shape),
            )
            lib.zero_unit_add_param(handle, param)
            leaf.handle = leaf.handle or lib.zero_unit_param(handle, i)
            leaves.append(leaf)
        return Use(name, module, handle, index, leaves, (C.c_void_p * len(leaves))())

    def _fill(self) -> None:
        """Moves the values of parameters to the engine, one parameter after another."""
        value = first_values(self.model, self._init, lib.zero_engine_seed(self._handle))
        by_name = {leaf.name: leaf for leaf in self._passes.leaves}

        def fill(user: int, name: bytes, first: int, count: int, out: int) -> None:
            if not _abi.raised:  # else the call fails, but asks for the other values first
                C.memmove(out, value(by_name[name.decode()]).data_ptr() + 4 * first, 4 * count)

        lib.zero_engine_fill(self._handle, _abi.callback(_header.zero_fill_fn, fill), None)

    def _attach(self) -> None:
        """The model computes in the engine's memory from here on, and its own is freed."""
        model, passes = self.model, self._passes
        meta = frozenset(m for m in model.modules() if any(b is not None and b.is_meta for b in m._buffers.values()))
        made = initialised(model, meta, self._init, lib.zero_engine_seed(self._handle)) if meta else {}
        moved: dict[torch.Tensor, torch.Tensor] = {}  # one buffer may have several names
        for name, buffer in model.named_buffers(remove_duplicate=False):
            if buffer not in moved:
                value = first_value(model, "buffer", [name], made) if buffer.is_meta else buffer
                moved[buffer] = value.to(self.device)
            NamedMemberAccessor(model).set_tensor(name, moved[buffer])
        for leaf in passes.leaves:
            leaf.attach(_DTYPES[lib.zero_param_dtype(leaf.handle)], self.device)
        for use in [*itertools.chain.from_iterable(passes.uses.values()), *filter(None, [passes.held])]:
            use.trains = any(leaf.parameter.requires_grad for leaf in use.leaves)
        passes.attach()
        self._filled = True
        C.CDLL(None).malloc_trim(0)

    # ---- training ----

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """loss.backward(), times the loss scale of fp16. The engine takes the mean over micro-steps and ranks."""
        if self._passes.ignores():
            raise ZeroError("zero: the engine trains nothing inside of full_parameters(): call backward outside")
        passes, inputs = self._passes, options.get("inputs")
        inputs = [inputs] if isinstance(inputs, torch.Tensor) else inputs
        passes.end_broken()
        starts = passes.awaits_backward() and (inputs is None or any(leaf.parameter is t for leaf in passes.leaves for t in inputs))
        if starts:
            passes.check_not_cleared()
        try:
            scale = Passes.scale = lib.zero_engine_loss_scale(self._handle)
            if starts:
                passes.start()
            (loss * scale if scale != 1 else loss).backward(**options)
            Passes.scale = None
            if starts:
                passes.finish()  # the last line: the program cannot know whether a backward that has raised was whole
        except BaseException:
            Passes.scale = None
            passes.in_backward |= starts
            raise

    def step(self, *, last: bool = False) -> StepInfo:
        """After the last of gradient_accumulation_steps micro-steps: clips and updates. Else nothing. Collective.
        `last`: no more micro-steps come; the missing ones count as zero in the mean."""
        passes = self._passes
        if not self._filled:
            raise ZeroError("zero: there was no forward of the model; to use parts of it, call engine.commit(...) first")
        if passes.settle():
            dropped = "and is dropped; repeat it" if passes.done else "and all micro-steps of this step are dropped; repeat them"
            raise ZeroError(f"zero: the last pass ended with an exception {dropped} before the step")
        passes.drop_cleared()
        given = passes.done
        while last and 0 < passes.done < self.accumulation_steps:
            passes.empty()
        passes.check_seen()
        passes.unseen = False
        if passes.done + passes.waiting < self.accumulation_steps:
            return replace(self.info, skipped=False, overflow_unit="", updated=False, repeated=False)
        self._check_model()
        self._stepping = self._samples + given * self.micro_batch * self.size
        raw = self.optimizer.update(self._handle)
        self._samples, passes.done, passes.mode = self._stepping, 0, None
        self._stepping = None
        if not self._warned:
            self._warn_unused()
        unit = (raw.overflow_unit or b"").decode()
        self.info = StepInfo(raw.step, raw.grad_norm, raw.lr, bool(raw.skipped), raw.loss_scale, unit, True, bool(raw.repeated))
        return self.info

    def _count_step(self) -> None:
        """An exception may have come between the engine's step and the line that counts it."""
        if self._stepping is not None:
            if not lib.zero_engine_passes(self._handle):
                self._samples, self._passes.done, self._passes.mode = self._stepping, 0, None
                self.optimizer.loaded()
            self._stepping = None

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
            elif (leaf is not None and leaf.trains) == p.requires_grad or not p.numel():
                continue
            else:
                change = f"requires_grad of parameter {name} has changed" if leaf else f"parameter {name} is new"
            raise ZeroError(f"zero: {change} since the model's first forward; change a model before it, or make another engine")

    def _warn_unused(self) -> None:
        self._warned = True
        names = [leaf.name for leaf in self._passes.leaves if leaf.parameter.requires_grad and not leaf.given]
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            warnings.warn(f"zero: no gradient came for {', '.join(names[:5])}{more}: it counts as zero", stacklevel=3)

    def setting(self, key: str) -> str | None:
        """The value of a key of the configuration as JSON text, "optimizer.params.lr"; None: it has none."""
        text: str | None = lib.zero_engine_setting(self._handle, key)
        return text

    # ---- state: collective, between steps ----

    def _get(self, leaf: Leaf, averages: bool = False) -> torch.Tensor:
        """The fp32 weights of a parameter. `averages`: their averages; a frozen parameter has none, and its weights do not change."""
        out = torch.empty(leaf.parameter.shape, dtype=torch.float32, device="cpu")
        kind = _header.ZERO_EMA if averages and leaf.trains else _header.ZERO_PARAM
        lib.zero_param_get(leaf.handle, kind, out.data_ptr(), 0, out.numel())
        return out

    def full_parameters(
        self, writeback: bool = False, *, rank0_only: bool = False, averages: bool = False
    ) -> AbstractContextManager[nn.Module]:
        """Inside, every parameter of the model is a whole fp32 copy on the CPU, on every rank, or on rank 0 alone; with `writeback`,
        what has changed goes to the engine. All ranks change alike, so `writeback` needs the copies on every rank. With `averages` the
        copies are the averaged weights ("ema" in the configuration): to evaluate them under torch.no_grad(), as a
        torch.optim.swa_utils.AveragedModel; on a GPU, where buffers stay, averaged() is for that. Nothing in the engine changes."""
        if writeback and rank0_only:
            raise ZeroError("zero: full_parameters: with writeback every rank changes its copies; leave out writeback or rank0_only")
        if writeback and averages:
            raise ZeroError("zero: full_parameters: averages are not written back; leave out writeback or averages")
        return self._within(self._whole(writeback, rank0_only, averages), self._passes.come_back)

    @contextmanager
    def _whole(self, writeback: bool, rank0_only: bool, averages: bool) -> Iterator[nn.Module]:
        self._prepare()
        passes = self._passes
        passes.whole = True
        try:
            for leaf in passes.leaves:
                whole = self._get(leaf, averages)
                leaf.parameter.grad = None
                if self.rank == 0 or not rank0_only:
                    leaf.parameter.data = whole
            yield self.model
            for leaf in passes.leaves if writeback else ():
                value = leaf.parameter.detach().to("cpu", torch.float32).contiguous()
                lib.zero_param_put(leaf.handle, _header.ZERO_PARAM, value.data_ptr(), 0, value.numel())
        finally:
            passes.come_back()
            passes.within = None

    def averaged(self) -> AbstractContextManager[nn.Module]:
        """Inside, forwards under torch.no_grad() compute with the averaged weights ("ema" in the configuration), between two steps:
        they exchange places with the weights, so that no rank holds the model and no memory is taken. Afterwards every bit is in its
        place again. Inside, calls that read or change weights are refused: training, saves, the hash. Collective."""
        return self._within(self._averaged(), lambda: lib.zero_engine_ema_end(self._handle))

    @contextmanager
    def _averaged(self) -> Iterator[nn.Module]:
        self._prepare()
        lib.zero_engine_ema_begin(self._handle)
        try:
            yield self.model
        finally:
            self._passes.settle()
            lib.zero_engine_ema_end(self._handle)
            self._passes.within = None

    def _within(self, manager: Any, end: Callable[[], None]) -> AbstractContextManager[nn.Module]:
        """Whatever comes between a `with` and its end, the next call ends it."""
        self._passes.leave()  # the one before
        self._passes.within = (manager.gen, end)
        inside: AbstractContextManager[nn.Module] = manager
        return inside

    def state_dict(self, *, rank0_only: bool = False, averages: bool = False) -> dict[str, torch.Tensor]:
        """The whole model: fp32 weights, or with `averages` their averages, and buffers, by the model's own names. With
        `rank0_only`, {} on the others."""
        with self.full_parameters(rank0_only=rank0_only, averages=averages) as model:
            state: dict[str, torch.Tensor] = model.state_dict()
        if rank0_only and self.rank:
            return {}
        leaves = {leaf.parameter for leaf in self._passes.leaves}
        copies = {name for name, p in self.model.named_parameters(remove_duplicate=False) if p in leaves}
        return {k: t.clone() if isinstance(t, torch.Tensor) and k not in copies else t for k, t in state.items()}

    def load_state_dict(self, state: dict[str, torch.Tensor], strict: bool = True) -> Any:
        """Weights and buffers by the model's own names, as Module.load_state_dict, whose missing and unexpected keys it returns. Moments
        and the step count stay."""
        with self.full_parameters(writeback=True) as model:
            return model.load_state_dict(state, strict)

    def save(self, directory: str | os.PathLike[str], notes: dict[str, str] | None = None) -> None:
        """A checkpoint of weights and optimizer state, as `zero train` writes them: `directory`/step_NNNNNNNN, and
        `directory`/latest. Buffers are not in it: state_dict() has them. `notes`: texts to keep with it, beside those of the
        position, `steps`, `samples` and `train_batch`, which they may replace. With "checkpoint": {"async": true} training goes on
        while it is written: save_wait() and close() wait for it, and raise if it fails."""
        self._prepare()
        position = {"steps": self.samples // self.train_batch, "samples": self.samples, "train_batch": self.train_batch}
        for key, text in ({key: str(value) for key, value in position.items()} | (notes or {})).items():
            lib.zero_engine_set_note(self._handle, key, text)
        Path(directory).parent.mkdir(parents=True, exist_ok=True)
        lib.zero_engine_save(self._handle, directory)
        self._saving = self.setting("checkpoint.async") == "true"

    def save_wait(self) -> None:
        """Waits until the last save is complete, and raises if it has failed. Collective."""
        self._passes.settle()
        self._saving = False
        lib.zero_engine_save_wait(self._handle)

    def load(self, directory: str | os.PathLike[str], *, weights_only: bool = False, averages: bool = False) -> None:
        """Goes on from a checkpoint of any stage, tier and number of ranks; or takes its weights alone, or with `averages` its
        averaged weights as the weights. A step that has begun is dropped."""
        self._passes.restart()
        self._commit()
        call = lib.zero_engine_load_weights if weights_only else lib.zero_engine_load
        call = lib.zero_engine_load_ema if averages else call
        call(self._handle, directory)
        if not weights_only and not averages:
            self.optimizer.loaded()
        self._samples = int(self.note("samples") or self.steps * self.train_batch) if self.steps else 0
        if not self._filled:
            self._attach()

    def resume(self, directory: str | os.PathLike[str]) -> bool:
        """Goes on from the latest complete checkpoint in `directory`, if there is one, on any number of ranks. Another batch than
        its run's is refused: then steps would take other samples. For a program that a launcher starts again and again."""
        self._commit()
        here = Path(directory)  # a crash in the first save may leave a checkpoint without `latest`
        found = (C.c_double * 1)(float(self.rank == 0 and ((here / "latest").exists() or any(here.glob("step_*")))))
        lib.zero_engine_sum(self._handle, found, 1)  # rank 0 decides for all
        if not found[0]:
            return False
        self.load(directory)
        batch = self.note("train_batch")
        if batch and int(batch) != self.train_batch:
            raise ZeroError(
                f"zero: {os.fspath(directory)} is of a run with batches of {batch} samples, and here are {self.train_batch} on "
                f'{self.size} ranks: set "train_batch_size": {batch} in place of "gradient_accumulation_steps"'
            )
        return True

    def note(self, key: str) -> str | None:
        """A text that was saved with the checkpoint."""
        text: str | None = lib.zero_engine_note(self._handle, key)
        return text

    def save_pretrained(self, directory: str | os.PathLike[str], dtype: torch.dtype | None = None, *, averages: bool = False) -> None:
        """config.json and model.safetensors, as from_pretrained reads them; with `averages`, of the averaged weights. No rank holds
        the model."""
        self._prepare()
        leaves = {leaf.parameter: leaf for leaf in self._passes.leaves}
        once = {id(t): (name, t) for name, t in reversed(self.model.state_dict(keep_vars=True).items())}  # a tied one goes once
        tensors = dict(reversed(once.values()))
        entries = {name: (t.shape, (t in leaves and dtype) or t.dtype) for name, t in tensors.items()}
        path = Path(directory, "model.safetensors.partial") if self.rank == 0 else Path(os.devnull)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_safetensors(path, entries, (self._get(leaves[t], averages) if t in leaves else t for t in tensors.values()))
        if self.rank == 0:
            path.replace(path.with_suffix(""))  # until here an earlier file is whole
        if self.rank == 0 and hasattr(self.model, "config"):
            self.model.config.save_pretrained(directory)  # type: ignore[union-attr, operator]

    def hash(self) -> str:
        """The hash of all fp32 weights under their names: the same at every stage, on every tier and number of ranks."""
        self._prepare()
        out = C.create_string_buffer(33)
        lib.zero_engine_hash(self._handle, out)
        return out.value.decode()

    # ---- the device for something else ----

    def park(self, tier: str = "cpu") -> None:
        """Gives the engine's memory on the device back between two steps: its content goes to host memory ("cpu") or to a
        drive ("nvme", in the configuration's nvme_path), until unpark(). Collective."""
        if tier not in _TIERS[1:]:
            raise ValueError(f'zero: engine.park: tier is {tier!r}; give "cpu" or "nvme"')
        self._prepare()
        passes = self._passes
        passes.parked = True
        try:
            lib.zero_engine_park(self._handle, _TIERS.index(tier))
        except ZeroError:
            passes.parked = False
            raise
        for leaf in passes.leaves:
            leaf.park()

    def unpark(self) -> None:
        """Takes the memory again. Training goes on with the same bits; parameters may be at other addresses. Collective."""
        try:
            lib.zero_engine_unpark(self._handle)
        except ZeroError as error:
            if error.code != "ZERO_E_ORDER" or not self._passes.parked:
                raise  # else an exception came after the call before
        self._passes.come_back()

    # ---- reports ----

    def plan(self) -> dict[str, Any]:
        """The plan of commit for this rank: bytes at rest and gathered, and by tier."""
        plan = self._commit()
        values = {name: getattr(plan, name) for name, *_ in plan._fields_[1:]}
        return values | {"bytes": dict(zip(_TIERS, plan.bytes, strict=True))}

    def memory(self) -> list[tuple[str, str, int, int]]:
        """Rows of tier, name, planned and measured bytes."""
        self._commit()
        rows: list[tuple[str, str, int, int]] = []
        with suppress(ZeroError):  # past the last
            for i in itertools.count():
                row = lib.zero_engine_memory(self._handle, i)
                rows.append((_TIERS[row.tier], row.name.decode(), row.planned, row.measured))
        return rows

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the steps that the configuration's `trace` chooses, for ui.perfetto.dev."""
        lib.zero_engine_write_trace(self._handle, path)

    @property
    def steps(self) -> int:
        """Updates done, those before a load included."""
        return int(lib.zero_engine_steps(self._handle))

    def close(self) -> None:
        """Ends the engine, once a save in the background is complete. The parameters are no longer there: take state_dict() before.
        While an exception is handled it ends at once."""
        passes = self.__dict__.get("_passes")
        try:
            if self._saving and not _fails() and os.getpid() == self._passes.process:
                self.save_wait()
        finally:
            if passes:
                passes.close()
            _models.discard(self.model)
            self.__dict__.pop("_passes", None)
            self.__dict__.pop("_handle", None)
            self._closing()

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("_passes", "_handle"):
            raise ZeroError("zero: the engine is closed")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
