"""A torch.nn.Module on the engine: what a user calls."""

import ctypes as C
import io
import itertools
import json
import logging
import math
import os
import secrets
import socket
import sys
import warnings
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from zero import _abi, _header, _units
from zero._abi import ZeroError, lib
from zero._cast import cast_inputs
from zero._files import NAMES, SINGLE, groups_to_write, own_name, plain, remove_older, step_directory, write
from zero._leaf import Leaf
from zero._open import Use
from zero._pass import Passes
from zero._private import NamedMemberAccessor, pytree
from zero._weights import ON_META, Given, Init, buffer_value, check_apart, digests, first_values, forget, initialised

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


_SETTINGS = ("lr", "weight_decay", "betas", "eps", "momentum", "dampening", "nesterov")  # of param_groups


class Optimizer(torch.optim.Optimizer):
    """The engine's optimizer, as schedulers of torch.optim.lr_scheduler and training loops know one: each step follows the groups' `lr`
    and `betas`. Another setting that changes is refused."""

    def __init__(self, engine: "Engine") -> None:
        run = {key: json.loads(engine.setting(f"optimizer.params.{key}") or "null") for key in _SETTINGS}
        run = {key: value for key, value in run.items() if value is not None} | {"lr": float(run["lr"] or 0)}
        groups: list[dict[str, Any]] = [{"params": list(engine.model.parameters())}]
        groups += [{"params": [], **group} for group in json.loads(engine.setting("param_groups") or "[]")]
        for group in (run, *groups):
            group |= {"betas": tuple(group["betas"])} if "betas" in group else {}
        super().__init__([{key: group[key] for key in ("params", *_SETTINGS) if key in group} for group in groups], run)
        self.engine = weakref.proxy(engine)
        self.rates = [float(group["lr"]) for group in self.param_groups]  # to the engine
        self.configured = self.betas = self._betas()
        self.fixed = [{key: group[key] for key in group.keys() & {*_SETTINGS} - {"lr", "betas"}} for group in self.param_groups]
        self.scheduled = engine.setting("scheduler.type") is not None
        self._is_accelerate_prepared = True  # accelerate takes it as it is

    @property
    def optimizer(self) -> "Optimizer":
        """As that of accelerate, which looks for a scheduler's optimizer in it."""
        return self

    @property
    def step_was_skipped(self) -> bool:
        return bool(self.engine.info.skipped)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "fixed"):
            raise ZeroError(
                "zero: the engine has the groups of the configuration: write param_groups there in place of add_param_group"
            )
        super().add_param_group(param_group)

    def loaded(self, handle: int) -> None:
        """The groups have the saved values, until others are set."""
        if not self.scheduled:
            self.rates = [lib.zero_engine_lr(handle, i) for i in range(len(self.rates))]
            for group, rate in zip(self.param_groups, self.rates, strict=True):
                group["lr"] = rate
        for group, betas in zip(self.param_groups, json.loads(self.engine.note("betas") or "[]"), strict=False):
            group |= {"betas": tuple(betas)} if "betas" in group else {}

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            raise ZeroError("zero: the engine's optimizers evaluate no closure; call step() without one")
        self.engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Between a backward and the next call of step: drops all micro-steps of this step, at the next forward or call of step. Else it
        changes nothing: the engine clears gradients after a step by itself."""
        for p in self.engine.model.parameters():  # the present ones
            p.grad = None

    def _betas(self) -> list[tuple[float, ...]]:
        return [tuple(map(float, group.get("betas", ()))) for group in self.param_groups]

    def tell(self, handle: int) -> None:
        """The engine learns what has changed in the groups."""
        rates, betas = [float(group["lr"]) for group in self.param_groups], self._betas()
        for i, (group, fixed) in enumerate(zip(self.param_groups, self.fixed, strict=True)):
            for key in (key for key, value in fixed.items() if group.get(key, value) != value):
                where = f"param_groups[{i - 1}].{key}" if i else f"optimizer.params.{key}"
                raise ZeroError(
                    f"zero: {key} of param_groups[{i}] is {group[key]}, and the engine's stays at the configuration's {fixed[key]}: leave it, "
                    f"or set {where} before the training; a step follows a group's lr and betas alone"
                )
            if not (0 <= rates[i] < math.inf and all(0 <= beta < 1 for beta in betas[i])):
                raise ZeroError(f"zero: param_groups[{i}] has lr {rates[i]} and betas {betas[i]}: lr is at least 0, betas are below 1")
        for i, (rate, pair) in enumerate(zip(rates, betas, strict=True)):
            if rate != self.rates[i]:
                lib.zero_engine_set_lr(handle, i, rate)
            if pair != self.betas[i]:
                lib.zero_engine_set_betas(handle, i, *pair)
        self.rates, self.betas = rates, betas

    def follow(self) -> None:
        """A schedule in the configuration has set the rates."""
        if self.scheduled:
            for group, rate in zip(self.param_groups, self.rates, strict=True):
                group["lr"] = rate

    def update(self, handle: int) -> Any:
        """A step at the rates of the groups, which a scheduler may have changed; a schedule in the configuration sets them."""
        self.tell(handle)
        info = lib.zero_engine_step(handle)
        self.rates = list(info.group_lr)[: len(self.rates)]
        self.follow()
        setattr(self, "_opt_called", True)  # noqa: B010  # for schedulers, which warn without it
        return info

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ZeroError(_NO_COPY)


_NO_COPY = (
    "zero: an engine and its optimizer cannot be copied or pickled: engine.state_dict() has the weights, engine.save(DIR) keeps all, and a "
    "copy.deepcopy(engine.model) inside of engine.full_parameters() is a plain model"
)


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


def _saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _loaded(data: bytes) -> Any:
    """Runs no code of the file's."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


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
        cast_inputs: bool = True,
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
        self._casts = cast_inputs
        self._saving = False  # in the background, perhaps
        self._declaring = self._loading = False  # True: an exception came into it
        self._puts: list[tuple[Leaf, torch.Tensor]] = []  # whole parameters to write
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
        for module in model.modules() if self.size > 1 else ():
            if hasattr(module, "generate"):  # transformers then lets all ranks go on until the last one ends (synced_gpus)
                module.__dict__["_is_fsdp_managed_module"] = True
        self.optimizer = Optimizer(self)
        self._early = self.setting("zero_optimization.update_in_backward") == "true"
        self._passes = Passes(model, handle, free_order, self._prepare, self._count_step)
        self._passes.attach_model()
        self._passes.limit = self.accumulation_steps
        if index >= 0:
            self._passes.device, self._passes.stream = self.device, stream

    # ---- declaring ----

    def commit(self, *args: Any, **kwargs: Any) -> None:
        """Declares the model in the order in which a forward of these arguments uses it, and moves the parameters to the
        engine. Without arguments: the order of registration, or of the model's `dummy_inputs`. Collective."""
        self._prepare(args, kwargs)

    def _prepare(self, args: Any = (), kwargs: Any = None) -> None:
        self._passes.settle()
        if self._loading:
            raise ZeroError("zero: an exception came while a checkpoint was loaded: call engine.load(...) again")
        grads = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(grads):  # what is made here lasts
            self._commit(args, kwargs)
            if not self._filled:
                self._fill()
                self._attach()
        if self._early:  # the backward takes the rates
            self.optimizer.tell(self._handle)

    def _commit(self, args: Any = (), kwargs: Any = None) -> Any:
        if self._plan is None:
            check_apart(self.model)
            given = bool(args or kwargs)
            if not given:
                dummies = getattr(self.model, "dummy_inputs", None)  # on the CPU
                kwargs = pytree.tree_map_only(torch.Tensor, lambda t: t.to(self.device), dummies)
            try:
                record = _units.trace(self.model, args, kwargs or {}, self.device) if args or kwargs else None
            except Exception as error:
                if given:
                    raise
                record = None  # transformers' dummy_inputs are tokens, also those of a vision model
                logger.info("the model's dummy_inputs do not fit it, so the order of units is that in which it has them: %s", error)
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
        ids = {id(p) for p in parameters.values()}
        modules = frozenset(m for m in module.modules() if any(id(p) in ids for p in m._parameters.values()))
        leaves = []
        for i, (key, p) in enumerate(parameters.items()):
            owner = made.get(p)
            own = own_name(key)
            leaf = owner or made.setdefault(p, Leaf(self._rename(own), name, p, modules))
            shape = tuple(p.shape) or (1,)
            excess = max(0, len(shape) - _header.ZERO_DIMS_MAX)
            shape = (math.prod(shape[: excess + 1]), *shape[excess + 1 :])
            param = _header.zero_param(
                name=(f"{leaf.name}@{name}" if owner else leaf.name).encode(),
                dims=len(shape),
                flags=(0 if p.requires_grad else _header.ZERO_FROZEN) | (_header.ZERO_NO_DECAY if key in self._no_decay else 0),
                tied_to=leaf.name.encode() if owner else None,
                slot=C.pointer(self._slot),
                shape=(C.c_uint64 * _header.ZERO_DIMS_MAX)(*shape),
                alias=(key if leaf.name == own else own).encode(),  # patterns fit the model's own names, too
            )
            lib.zero_unit_add_param(handle, param)
            leaf.handle = leaf.handle or lib.zero_unit_param(handle, i)
            leaves.append(leaf)
        return Use(name, module, handle, index, leaves, (C.c_void_p * len(leaves))())

    def _fill(self) -> None:
        """Moves the values of parameters to the engine, one parameter after another."""
        given = self._agree([leaf.parameter for leaf in self._passes.leaves])
        value = first_values(self.model, self._init, lib.zero_engine_seed(self._handle), given)
        by_name = {leaf.name: leaf for leaf in self._passes.leaves}

        def fill(user: int, name: bytes, first: int, count: int, out: int) -> None:
            if not _abi.raised:  # else the call fails, but asks for the other values first
                C.memmove(out, value(by_name[name.decode()]).data_ptr() + 4 * first, 4 * count)

        lib.zero_engine_fill(self._handle, _abi.callback(_header.zero_fill_fn, fill), None)

    def _broadcast(self, t: torch.Tensor) -> torch.Tensor:
        """Rank 0's bytes in the place of this rank's, in the memory of a tensor on the CPU."""
        lib.zero_engine_broadcast(self._handle, t.data_ptr(), t.nbytes)
        return t

    def _any(self, here: bool) -> bool:
        """Whether it is so on any rank."""
        count = (C.c_double * 1)(float(here))
        lib.zero_engine_sum(self._handle, count, 1)
        return bool(count[0])

    def _agree(self, tensors: list[Any]) -> Given:
        """Where ranks have other first values, all take rank 0's, as under DistributedDataParallel: those that this rank has on the meta
        device are returned; None: rank 0 has that one on the meta device."""
        given: Given = {}
        if self.size == 1:
            return given
        mine = digests(self.model, tensors)
        theirs = self._broadcast(mine.clone())
        if not self._any(not torch.equal(mine, theirs)):
            return given
        logger.info("the ranks have made models with other first values: all take those of rank 0")
        for t, own, kind in zip(tensors, mine.tolist(), theirs.tolist(), strict=True):
            if kind < 0:
                given |= {t: None} if kind != own and kind == ON_META else {}
                continue
            value = torch.empty(t.shape, dtype=t.dtype, device="cpu") if t.is_meta else t.detach().to("cpu").contiguous()
            self._broadcast(value)
            if t.is_meta:
                given[t] = value
            else:
                t.data.copy_(value)
        return given

    def _attach(self) -> None:
        """The model computes in the engine's memory from here on, and its own is freed."""
        model, passes = self.model, self._passes
        meta = frozenset(m for m in model.modules() if any(b is not None and b.is_meta for b in m._buffers.values()))
        made = initialised(model, meta, self._init, lib.zero_engine_seed(self._handle)) if meta else {}
        moved: dict[torch.Tensor, torch.Tensor] = {}  # one buffer may have several names
        for name, buffer in model.named_buffers(remove_duplicate=False):
            if buffer not in moved:
                moved[buffer] = buffer_value(model, name, buffer, made).to(self.device)
            NamedMemberAccessor(model).set_tensor(name, moved[buffer])
        known = {leaf.parameter for leaf in passes.leaves}
        self._agree([*moved.values(), *(p for p in model.parameters() if p not in known)])
        forget(model)
        for leaf in passes.leaves:
            leaf.attach(_DTYPES[lib.zero_param_dtype(leaf.handle)], self.device)
        for use in [*itertools.chain.from_iterable(passes.uses.values()), *filter(None, [passes.held])]:
            use.trains = any(leaf.parameter.requires_grad for leaf in use.leaves)
        passes.attach()
        if self._casts and self.dtype != torch.float32:
            held = {leaf.parameter for leaf in passes.held.leaves} if passes.held else set()
            hooks, passes.cast = cast_inputs(model, passes.uses.keys(), held)
            passes.hooks += hooks
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
                self.optimizer.follow()
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
        return self._within(self._whole(writeback, rank0_only, averages), self._end_whole)

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
            if writeback:
                values = [leaf.parameter.detach().to("cpu", torch.float32).contiguous() for leaf in passes.leaves]
                self._puts = list(zip(passes.leaves, values, strict=True))
        finally:
            self._end_whole()
            passes.within = None

    def _end_whole(self) -> None:
        """Also once more, after an exception: all of what has changed is written, or nothing."""
        try:
            for leaf, value in self._puts:
                lib.zero_param_put(leaf.handle, _header.ZERO_PARAM, value.data_ptr(), 0, value.numel())
            self._puts = []
        finally:
            self._passes.come_back()

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

    def _kept(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the engine's parameters: persistent buffers, extra states, parameters of integers."""
        known = {id(leaf.parameter) for leaf in self._passes.leaves}
        state = {own_name(name): t for name, t in self.model.state_dict(keep_vars=True).items() if id(t) not in known}
        kept = {name: t.detach().to("cpu", copy=True) for name, t in state.items() if isinstance(t, torch.Tensor)}
        for name in state.keys() - kept.keys():
            with suppress(Exception):  # of any pickler
                kept[name] = _loaded(_saved(state[name]))
        if kept.keys() != state.keys():
            names = ", ".join(sorted(state.keys() - kept.keys()))
            warnings.warn(f"zero: a checkpoint keeps tensors, numbers and texts, and so leaves out {names}", stacklevel=4)
        return kept

    def save(self, directory: str | os.PathLike[str], notes: dict[str, str] | None = None) -> None:
        """A checkpoint of weights, optimizer state and rank 0's persistent buffers, as `zero train` writes them:
        `directory`/step_NNNNNNNN, and `directory`/latest. `notes`: texts to keep with it, beside those of the position, `steps`,
        `samples` and `train_batch`, which they may replace. With "checkpoint": {"async": true} training goes on while it is written:
        save_wait() and close() wait for it, and raise if it fails."""
        self._prepare()
        handle = self._handle
        position = {"steps": self.samples // self.train_batch, "samples": self.samples, "train_batch": self.train_batch}
        for key, text in ({key: str(value) for key, value in position.items()} | (notes or {})).items():
            lib.zero_engine_set_note(handle, key, text)
        self.optimizer.tell(handle)
        changed = self.optimizer.betas != self.optimizer.configured
        lib.zero_engine_set_note(handle, "betas", json.dumps(self.optimizer.betas) if changed else None)
        kept = self._kept()
        data = _saved(kept)
        checksum = self._broadcast(torch.tensor([zlib.crc32(data)])).item()
        lib.zero_engine_set_note(handle, "program.bin", str(checksum) if kept else None)
        lib.zero_engine_set_file(handle, data if kept else None, len(data))
        Path(directory).parent.mkdir(parents=True, exist_ok=True)
        lib.zero_engine_save(handle, directory)
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
        self._loading = True
        try:
            call(self._handle, directory)
        except ZeroError:
            self._loading = False
            raise
        if not weights_only and not averages:
            self.optimizer.loaded(self._handle)
        self._samples = int(self.note("samples") or self.steps * self.train_batch) if self.steps else 0
        if not self._filled:
            self._attach()
        checksum = self.note("program.bin")
        if checksum is not None:
            self._take_kept(step_directory(Path(directory)) / "program.bin", checksum)
        self._loading = False

    def _take_kept(self, path: Path, checksum: str) -> None:
        data = path.read_bytes() if path.exists() else b""
        if str(zlib.crc32(data)) != checksum:
            raise ZeroError(
                f"zero: {path} is {'damaged' if data else 'missing'}, which has the buffers of this checkpoint: load another one",
                "ZERO_E_IO",
            )
        kept, names = _loaded(data), {own_name(name): name for name in self.model.state_dict(keep_vars=True)}
        self.model.load_state_dict({names[name]: value for name, value in kept.items() if name in names}, strict=False)
        differ = kept.keys() ^ self._kept().keys()
        if differ:
            warnings.warn(
                f"zero: only one of {path} and the model has {', '.join(sorted(differ)[:5])}: it is left as it is", stacklevel=4
            )

    def resume(self, directory: str | os.PathLike[str]) -> bool:
        """Goes on from the latest complete checkpoint in `directory`, if there is one, on any number of ranks. Another batch than
        its run's is refused: then steps would take other samples. For a program that a launcher starts again and again."""
        self._commit()
        here = Path(directory)  # a crash in the first save may leave a checkpoint without `latest`
        if not self._any(self.rank == 0 and ((here / "latest").exists() or any(here.glob("step_*")))):  # rank 0 decides for all
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
        """config.json and model.safetensors, as from_pretrained reads them, in the place of what an earlier save has written there; of a
        model of PEFT its adapters, as PEFT writes them. With `averages`, of the averaged weights. No rank holds the model."""
        model, place = plain(self.model), Path(directory)
        with self.adapters(dtype, averages) as adapters:
            if adapters is not None:
                model.save_pretrained(directory, state_dict=adapters, is_main_process=self.rank == 0)
        if adapters is None:
            self._write(place, dtype, averages)
            if self.rank == 0 and hasattr(model, "config"):
                model.config.save_pretrained(directory)
        self._any(False)  # the files are there for all ranks

    def _write(self, place: Path, dtype: torch.dtype | None, averages: bool) -> None:
        leaves = {leaf.parameter: leaf for leaf in self._passes.leaves}
        state = {own_name(name): t for name, t in plain(self.model).state_dict(keep_vars=True).items()}
        no_place = [name for name, t in state.items() if not isinstance(t, torch.Tensor) or t.dtype not in NAMES]
        if no_place:
            warnings.warn(f"zero: safetensors files have no place for {', '.join(no_place)}: left out of {place}", stacklevel=4)
        once = {id(t): (name, t) for name, t in reversed(state.items()) if name not in no_place}  # a tied one goes once
        tensors = dict(reversed(once.values()))
        empty = lambda name: torch.empty_like(tensors[name], dtype=(tensors[name] in leaves and dtype) or None, device="meta")
        whole = lambda name: self._get(leaves[tensors[name]], averages) if tensors[name] in leaves else tensors[name]
        groups = groups_to_write(plain(self.model), tensors)
        entries = {name: (t.shape, t.dtype) for group in groups for name, t in group.convert(plain(self.model), empty).items()}
        values = (t for group in groups for t in group.convert(plain(self.model), whole).values())
        path = place / f"{SINGLE}.partial" if self.rank == 0 else Path(os.devnull)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            write(file, entries, values)
        if self.rank == 0:
            path.replace(path.with_suffix(""))  # until here an earlier file is whole
            remove_older(place)

    @contextmanager
    def adapters(self, dtype: torch.dtype | None = None, averages: bool = False) -> Iterator[dict[str, Any] | None]:
        """The state that a PEFT model's save_pretrained takes: the adapters' tensors, and of the others their shapes. None: of a model
        without PEFT. Collective."""
        self._prepare()
        model, leaves = plain(self.model), {leaf.parameter: leaf for leaf in self._passes.leaves}
        configs = getattr(model, "peft_config", None)
        if not configs:
            yield None
        elif any(config.is_prompt_learning for config in configs.values()):  # what PEFT saves then is a forward's result
            with self.full_parameters(rank0_only=True, averages=averages):
                yield model.state_dict() if self.rank == 0 else {}
        else:
            from peft import get_peft_model_state_dict

            state = {own_name(name): t for name, t in model.state_dict(keep_vars=True).items()}
            shapes = {name: torch.empty_like(t, device="meta") if t in leaves else t for name, t in state.items()}
            taken = {id(t) for name in configs for t in get_peft_model_state_dict(model, shapes, name).values()}
            for name, t in state.items():
                if t in leaves and id(shapes[name]) in taken:
                    shapes[name] = self._get(leaves[t], averages).to(dtype or t.dtype)
            yield shapes

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
            for module in self.model.modules():
                module.__dict__.pop("_is_fsdp_managed_module", None)
            _models.discard(self.model)
            self.__dict__.pop("_passes", None)
            self.__dict__.pop("_handle", None)
            self._closing()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ZeroError(_NO_COPY)

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("_passes", "_handle"):
            raise ZeroError("zero: the engine is closed")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
