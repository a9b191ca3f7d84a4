"""A torch.nn.Module on the engine: what a user calls."""

import collections
import ctypes as C
import itertools
import json
import logging
import os
import secrets
import socket
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zero import _abi, _units
from zero._abi import ZeroError, lib
from zero._pass import Leaf, Passes, Unit, Use
from zero._weights import Init, Values, initialised, write_safetensors

logger = logging.getLogger("zero")


def _write_log(user: int, level: int, line: bytes) -> None:
    logger.log(10 * (level + 1), "%s", line.decode(errors="replace"))


_log = _abi.LOG(_write_log)


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What a step did. Between the micro-steps of a step `updated` is False, and the rest is of the step before."""

    step: int = 0
    grad_norm: float = float("nan")
    lr: float = float("nan")
    skipped: bool = False
    loss_scale: float = 1.0
    overflow_unit: str = ""
    updated: bool = False


class Optimizer(torch.optim.Optimizer):
    """The engine's optimizer, as schedulers of torch.optim.lr_scheduler and training loops know one."""

    def __init__(self, engine: "Engine") -> None:
        lr = float(engine.setting("optimizer.params.lr") or 0)
        others = json.loads(engine.setting("param_groups") or "[]")
        groups: list[dict[str, Any]] = [{"params": list(engine.model.parameters()), "lr": lr}]
        groups += [{"params": [], "lr": float(group.get("lr", lr))} for group in others]
        super().__init__(groups, {"lr": lr})
        self.engine = weakref.proxy(engine)
        self.known = [group["lr"] for group in groups]
        self._is_accelerate_prepared = True  # accelerate takes it as it is

    @property
    def step_was_skipped(self) -> bool:
        return bool(self.engine.info.skipped)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The rates; moments are in the engine's checkpoints."""
        super().load_state_dict(state_dict)
        self.known = [float("nan")] * len(self.known)

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            raise ZeroError("zero: the engine's optimizers evaluate no closure; call step() without one")
        self.engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The engine clears gradients by itself."""

    def hand_over(self, handle: int) -> None:
        """Tells the engine about rates that a scheduler has changed."""
        for i, group in enumerate(self.param_groups):
            if group["lr"] != self.known[i]:
                lib.zero_engine_set_lr(handle, i, float(group["lr"]))
                self.known[i] = group["lr"]

    def take_over(self, rates: list[float]) -> None:
        """The rates of a schedule in the configuration, or of a checkpoint."""
        for i, group in enumerate(self.param_groups):
            group["lr"] = self.known[i] = rates[i]


def _default_rename(model: nn.Module) -> Callable[[str], str]:
    """A GPT-2 of transformers has the names of its published files, which `zero train` has too."""
    gpt2 = getattr(getattr(model, "config", None), "model_type", "") == "gpt2"
    return lambda name: name.removeprefix("transformer.") if gpt2 else name


def _meeting_point(runtime: _abi.Runtime) -> None:
    """Where torch.distributed is there, its ranks are the engine's, and share a secret; else see zero_runtime in zero.h."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    place: list[Any] = [None]
    if dist.get_rank() == 0:
        with socket.create_server(("", 0)) as free:
            place = [(os.environ.get("MASTER_ADDR") or socket.gethostname(), free.getsockname()[1], secrets.token_hex())]
    dist.broadcast_object_list(place, src=0)
    runtime.rank, runtime.size = dist.get_rank(), dist.get_world_size()
    runtime.address, runtime.port = place[0][0].encode(), place[0][1]
    runtime.secret = runtime.secret or place[0][2].encode()


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
        secret: str | None = None,
        total_steps: int = 0,
        trace_steps: tuple[int, int] | None = None,
    ) -> None:
        self.model, self._spec, self._init = model, units, init
        self._rename = rename or _default_rename(model)
        self._trace_steps, self._no_decay = trace_steps, no_decay
        self.info, self._committed, self._filled, self._warned = StepInfo(), False, False, False
        runtime = _abi.Runtime(threads=torch.get_num_threads(), total_steps=total_steps, secret=secret and secret.encode())
        self._open(json.dumps(config) if isinstance(config, dict) else os.fspath(config), runtime)
        if free_order:
            lib.zero_engine_free_order_within(self._handle, 0 if free_order is True else free_order)
        self.optimizer = Optimizer(self)
        self._passes = Passes(model, self._handle, bool(free_order), self._prepare)
        if self.dtype != torch.float32:
            self._passes.dtype = self.dtype

    def _open(self, config: str, runtime: _abi.Runtime) -> None:
        runtime.log = C.cast(_log, C.c_void_p)
        self._interrupted = _abi.answering()
        runtime.interrupted = C.cast(self._interrupted, C.c_void_p)
        parameter = next(self.model.parameters())
        if parameter.is_cuda or (parameter.is_meta and torch.cuda.is_available()):
            stream = torch.cuda.current_stream().cuda_stream
            runtime.cuda, runtime.cuda_stream, runtime.cuda_default_stream = 1, stream or None, int(not stream)
        _meeting_point(runtime)
        self._slot = _abi.Slot()  # of all parameters, whose addresses are fixed
        self._runtime, handle = runtime, C.c_void_p()
        lib.zero_engine_open(config.encode(), C.byref(runtime), C.byref(handle))
        self._handle: int = handle.value or 0
        self._closing = weakref.finalize(self, lib.zero_engine_destroy, self._handle)
        self.rank: int = lib.zero_engine_rank(self._handle)
        self.size: int = lib.zero_engine_size(self._handle)
        self.micro_batch: int = lib.zero_engine_micro_batch(self._handle)
        self.accumulation_steps: int = lib.zero_engine_accumulation_steps(self._handle)
        self.train_batch: int = lib.zero_engine_train_batch(self._handle)
        self.dtype = _abi.DTYPES[lib.zero_engine_dtype(self._handle)]
        gpu = lib.zero_engine_cuda(self._handle, None)
        self.device = torch.device("cuda", gpu) if gpu >= 0 else torch.device("cpu")

    # ---- declaring ----

    def commit(self, *args: Any, **kwargs: Any) -> None:
        """Declares the model in the order in which a forward of these arguments uses it, and moves the parameters to the
        engine. Without arguments: the order of registration, or of the model's `dummy_inputs`. Collective."""
        self._prepare(args, kwargs)

    def _prepare(self, args: Any = (), kwargs: Any = None) -> None:
        self._passes.settle()
        self._commit(args, kwargs)
        self._fill()

    def _commit(self, args: Any = (), kwargs: Any = None) -> None:
        if self._committed:
            return
        if not args and not kwargs:
            kwargs = getattr(self.model, "dummy_inputs", None)
        with self._passes.ignoring():
            record = _units.trace(self.model, args, kwargs or {}) if args or kwargs else None
        self._declare(_units.lay_out(self.model, self._spec, record))
        if self._trace_steps:
            lib.zero_engine_trace(self._handle, *self._trace_steps)
        self._plan = _abi.Plan()
        lib.zero_engine_commit(self._handle, C.byref(self._plan))
        self._committed = True

    def _declare(self, layout: _units.Layout) -> None:
        passes = self._passes
        made: dict[int, Leaf] = {}
        if layout.held:
            passes.root = self._add_unit("(model)", 0, {}, [], made)
            modules = [m for m in self.model.modules() if any(p is q for p in m._parameters.values() for q in layout.held.values())]
            passes.held = self._add_unit("(held)", 0, layout.held, modules, made)
            lib.zero_unit_hold(passes.held.handle)
        for index, group in enumerate(layout.calls):
            unit = passes.units.setdefault(group.module, Unit(group.name or "model", group.module))
            if unit.uses and passes.free:
                continue
            name = unit.name if not unit.uses else f"{unit.name}#{len(unit.uses) + 1}"
            unit.uses.append(self._add_unit(name, index, group.names, list(group.module.modules()), made))
        passes.leaves = list(made.values())

    def _add_unit(
        self,
        name: str,
        index: int,
        parameters: dict[str, nn.Parameter],
        modules: list[nn.Module],
        made: dict[int, Leaf],
    ) -> Use:
        handle = C.c_void_p()
        lib.zero_engine_add_unit(self._handle, name.encode(), C.byref(handle))
        leaves = []
        for i, (key, p) in enumerate(parameters.items()):
            owner = made.get(id(p))
            leaf = owner or made.setdefault(id(p), Leaf(self._rename(key), name, p, modules))
            text = f"{leaf.name}@{name}" if owner else leaf.name
            shape = tuple(p.shape) or (1,)
            param = _abi.Param(
                name=text.encode(),
                dims=len(shape),
                flags=(0 if p.requires_grad else _abi.FROZEN) + (_abi.NO_DECAY if key in self._no_decay else 0),
                tied_to=leaf.name.encode() if owner else None,
                shape=(C.c_uint64 * 8)(*shape),
            )
            param.slot = C.cast(C.pointer(self._slot), C.c_void_p)
            lib.zero_unit_add_param(handle, C.byref(param))
            if not owner:
                leaf.handle = lib.zero_unit_param(handle, i)
            leaves.append(leaf)
        return Use(handle.value or 0, index, leaves, (C.c_void_p * len(leaves))())

    def _fill(self) -> None:
        """The values of parameters become the engine's, one parameter after another, and their memory is freed."""
        if self._filled:
            return
        values = Values(self.model, self._init, lib.zero_engine_seed(self._handle))
        by_name = {leaf.name: leaf for leaf in self._passes.leaves}
        failures: list[BaseException] = []

        def fill(user: int, name: bytes, first: int, count: int, out: int) -> None:
            try:
                leaf = by_name[name.decode()]
                flat = values.flat(leaf.parameter, leaf.unit, leaf.modules)
                C.memmove(out, flat.data_ptr() + 4 * first, 4 * count)
            except BaseException as error:  # noqa: BLE001  # it must not go through C
                failures.append(error)

        lib.zero_engine_fill(self._handle, _abi.FILL(fill), None)
        if failures:
            raise failures[0]
        self._attach(values)

    def _attach(self, values: Values) -> None:
        """The model computes in the engine's memory from here on."""
        for leaf in self._passes.leaves:
            leaf.attach(self.dtype, self.device)
        for module in self.model.modules():
            if any(b is not None and b.is_meta for b in module._buffers.values()):
                initialised([module], values.init, values.seed, "")
        uses = [use for unit in self._passes.units.values() for use in unit.uses]
        for use in [*uses, *([self._passes.held] if self._passes.held else [])]:
            use.trains = any(leaf.parameter.requires_grad for leaf in use.leaves)
        self._passes.attach()
        self._filled = True
        C.CDLL(None).malloc_trim(0)

    # ---- training ----

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """loss.backward(), times the loss scale of fp16. The engine takes the mean over micro-steps and ranks."""
        scale = lib.zero_engine_loss_scale(self._handle)
        (loss * scale if scale != 1 else loss).backward(**options)
        self._passes.finish()

    def step(self, *, last: bool = False) -> StepInfo:
        """After the last of gradient_accumulation_steps micro-steps: clips and updates. Else nothing. Collective.
        `last`: no more of them come; those that are missing count as zero in the mean."""
        passes = self._passes
        if not self._filled:
            raise ZeroError("zero: there was no forward of the model; to use parts of it, call engine.commit(...) first")
        if passes.settle():
            raise ZeroError("zero: the last pass ended with an exception and is dropped; repeat it before the step")
        passes.finish()
        while last and 0 < passes.micro < self.accumulation_steps:
            passes.empty()
        if passes.micro < self.accumulation_steps:
            return StepInfo(self.info.step, self.info.grad_norm, self.info.lr, loss_scale=self.info.loss_scale)
        self.optimizer.hand_over(self._handle)
        raw = _abi.StepInfo()
        lib.zero_engine_step(self._handle, C.byref(raw))
        passes.micro, passes.mode = 0, None
        setattr(self.optimizer, "_opt_called", True)  # noqa: B010  # for schedulers, which warn without it
        if not self._warned:
            self._warn_unused()
        if json.loads(self.setting("scheduler.type") or "null"):
            self.optimizer.take_over(list(raw.group_lr))
        text = (raw.overflow_unit or b"").decode()
        self.info = StepInfo(raw.step, raw.grad_norm, raw.lr, bool(raw.skipped), raw.loss_scale, text, True)
        return self.info

    def _warn_unused(self) -> None:
        self._warned = True
        names = [leaf.name for leaf in self._passes.leaves if leaf.parameter.requires_grad and not leaf.given]
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            warnings.warn(f"zero: no gradient came for {', '.join(names[:5])}{more}: it counts as zero", stacklevel=3)

    def setting(self, key: str) -> str | None:
        """The value of a key of the configuration as JSON text, "optimizer.params.lr"; None: it has none."""
        text = lib.zero_engine_setting(self._handle, key.encode())
        return text.decode() if text is not None else None

    # ---- state: collective, between steps ----

    def get(self, leaf: Leaf) -> torch.Tensor:
        """The fp32 weights of a parameter."""
        out = torch.empty(leaf.parameter.shape, dtype=torch.float32)
        lib.zero_param_get(leaf.handle, _abi.PARAM, out.data_ptr(), 0, out.numel())
        return out

    def _names(self) -> dict[str, Leaf]:
        """All names of the model's parameters, those of tied ones too."""
        self._prepare()
        leaves = {id(leaf.parameter): leaf for leaf in self._passes.leaves}
        named = self.model.named_parameters(remove_duplicate=False)
        return {name: leaves[id(p)] for name, p in named if id(p) in leaves}

    def state_dict(self, *, rank0_only: bool = False) -> dict[str, torch.Tensor]:
        """The whole model: fp32 weights, and buffers, by the model's own names. With `rank0_only`, {} on the others."""
        keep = self.rank == 0 or not rank0_only
        persistent = self.model.state_dict(keep_vars=True)
        names, whole, state = self._names(), dict[int, torch.Tensor](), dict[str, torch.Tensor]()
        for name in persistent:
            if name not in names:
                state[name] = persistent[name].detach().clone()
                continue
            leaf = names[name]
            if leaf.handle not in whole:
                value = self.get(leaf)
                whole[leaf.handle] = value if keep else torch.empty(0)
            state[name] = whole[leaf.handle]
        return state if keep else {}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Weights and buffers by the model's own names, all of them. Moments and the step count stay."""
        names, buffers = self._names(), dict(self.model.named_buffers())
        for name in sorted({*names, *self.model.state_dict(keep_vars=True)} - {*state}):
            leaf = names.get(name)
            if not leaf or not any(names.get(other) is leaf for other in state):
                raise ZeroError(f"zero: the state has no {name}", "ZERO_E_ARGUMENT")
        for name, value in state.items():
            if name in names:
                self._put(names[name], value)
            elif name in buffers:
                buffers[name].copy_(value)
            else:
                raise ZeroError(f"zero: the model has no {name}", "ZERO_E_ARGUMENT")

    def _put(self, leaf: Leaf, value: torch.Tensor) -> None:
        if value.shape != leaf.parameter.shape:
            shapes = f"{list(value.shape)}, and not {list(leaf.parameter.shape)}"
            raise ZeroError(f"zero: the value for {leaf.name} is {shapes}", "ZERO_E_ARGUMENT")
        value = value.detach().to("cpu", torch.float32).contiguous()
        lib.zero_param_put(leaf.handle, _abi.PARAM, value.data_ptr(), 0, value.numel())

    @contextmanager
    def full_parameters(self, writeback: bool = False) -> Iterator[nn.Module]:
        """Inside, every parameter of the model is a whole fp32 copy, on every rank; with `writeback`, what has changed
        goes to the engine. All ranks change alike."""
        self._prepare()
        leaves = self._passes.leaves
        try:
            with self._passes.ignoring():
                for leaf in leaves:
                    leaf.parameter.grad = None
                    leaf.parameter.data = self.get(leaf)
                yield self.model
            for leaf in leaves if writeback else ():
                self._put(leaf, leaf.parameter)
        finally:
            for leaf in leaves:
                if leaf.tensor is not None:
                    leaf.parameter.data = leaf.tensor

    def save(self, directory: str | os.PathLike[str], notes: dict[str, str] | None = None) -> None:
        """A checkpoint of weights and optimizer state, as `zero train` writes them: `directory`/step_NNNNNNNN, and
        `directory`/latest. Buffers are not in it: state_dict() has them."""
        self._prepare()
        for key, text in (notes or {}).items():
            lib.zero_engine_set_note(self._handle, key.encode(), text.encode())
        Path(directory).parent.mkdir(parents=True, exist_ok=True)
        lib.zero_engine_save(self._handle, os.fsencode(directory))

    def load(self, directory: str | os.PathLike[str], *, weights_only: bool = False) -> None:
        """Goes on from a checkpoint of any stage, tier and number of ranks; or takes its weights alone."""
        self._commit()
        call = lib.zero_engine_load_weights if weights_only else lib.zero_engine_load
        call(self._handle, os.fsencode(directory))
        if not self._filled:
            self._attach(Values(self.model, self._init, lib.zero_engine_seed(self._handle)))

    def note(self, key: str) -> str | None:
        """A text that was saved with the checkpoint."""
        text = lib.zero_engine_note(self._handle, key.encode())
        return text.decode() if text is not None else None

    def save_pretrained(self, directory: str | os.PathLike[str], dtype: torch.dtype | None = None) -> None:
        """config.json and model.safetensors, as from_pretrained reads them. No rank holds the model."""
        names = self._names()
        directory, seen, entries = Path(directory), set[int](), list[tuple[str, Leaf]]()
        for name, leaf in names.items():  # a tied parameter goes once
            if leaf.handle not in seen:
                entries.append((name, leaf))
            seen.add(leaf.handle)
        kept = {k: v for k, v in self.model.state_dict(keep_vars=True).items() if k not in names}
        header = [(name, leaf.parameter.shape, dtype or self.dtype) for name, leaf in entries]
        header += [(name, b.shape, b.dtype) for name, b in kept.items()]
        parts = itertools.chain((self.get(leaf) for _, leaf in entries), kept.values())
        if self.rank:
            collections.deque(parts, maxlen=0)
            return
        directory.mkdir(parents=True, exist_ok=True)
        write_safetensors(directory / "model.safetensors", header, parts)
        if hasattr(self.model, "config"):
            self.model.config.save_pretrained(directory)  # type: ignore[union-attr, operator]

    def hash(self) -> str:
        """Of all fp32 weights under their names: the same at every stage, on every tier and number of ranks."""
        self._prepare()
        out = C.create_string_buffer(33)
        lib.zero_engine_hash(self._handle, out)
        return out.value.decode()

    # ---- reports ----

    def plan(self) -> dict[str, Any]:
        """What commit has planned, for this rank: bytes at rest and gathered, and by tier."""
        self._commit()
        plan = {name: getattr(self._plan, name) for name, *_ in _abi.Plan._fields_[1:-1]}
        return plan | {"bytes": dict(zip(_abi.TIERS, self._plan.bytes, strict=True))}

    def memory(self) -> list[tuple[str, str, int, int]]:
        """Rows of tier, name, planned and measured bytes."""
        self._commit()
        rows: list[tuple[str, str, int, int]] = []
        row = _abi.MemoryRow()
        while not lib.zero_engine_memory(self._handle, len(rows), C.byref(row)):
            rows.append((_abi.TIERS[row.tier], row.name.decode(), row.planned, row.measured))
        return rows

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the steps that trace_steps=(first, count) recorded, for ui.perfetto.dev."""
        lib.zero_engine_write_trace(self._handle, os.fsencode(path))

    @property
    def steps(self) -> int:
        """Updates done, those before a load included."""
        return int(lib.zero_engine_steps(self._handle))

    def close(self) -> None:
        """Ends the engine. The parameters are no longer there: take state_dict() before."""
        for hook in self._passes.hooks:
            hook.remove()
        self._closing()
