"""A model that is declared to the engine, and moves there."""

import ctypes as C
import itertools
import json
import logging
import math
import os
import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn

from zero import _abi, _gathered, _header, _parts, _units
from zero._abi import ZeroError, lib
from zero._activations import Compared, peak, with_margin
from zero._cast import cast_inputs
from zero._files import own_name
from zero._leaf import Leaf, owned
from zero._open import Use
from zero._optimizer import NO_COPY, Optimizer, configure
from zero._pass import Passes
from zero._place import end, gpu, meeting_point, names_gpu
from zero._private import NamedMemberAccessor, pytree
from zero._weights import ON_META, Given, Init, buffer_value, check_apart, digests, first_values, forget, initialised

logger = logging.getLogger("zero")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
engines: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[Any]]" = weakref.WeakKeyDictionary()  # by their models


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


def _default_rename(model: nn.Module) -> Callable[[str], str]:
    """A GPT-2 of transformers has the names of its published files, which `zero train` has too."""
    gpt2 = getattr(getattr(model, "config", None), "model_type", "") == "gpt2"
    return lambda name: name.removeprefix("transformer.") if gpt2 else name


class Declared:
    """The model's parameters move to the engine at the model's first forward, whose calls give the order of units, or before, at
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
        optimizer: torch.optim.Optimizer | None = None,
        ignored: Iterable[nn.Module | nn.Parameter] = (),
        train: bool = True,
        activations: int | str = 0,
    ) -> None:
        parameter = next(model.parameters(), None)
        if parameter is None:
            raise ValueError(f"zero: the model, a {type(model).__name__}, has no parameters")
        self._ignored = {p for found in ignored for p in (found.parameters() if isinstance(found, nn.Module) else (found,))}
        if model in engines or _gathered.find(p for p in model.parameters() if p not in self._ignored):
            raise ValueError("zero: the model is on an engine already: use that one, or make the model again")
        _units.chosen_modules(model, units)
        self.model, self._spec, self._init, self._no_decay = model, units, init, no_decay
        self._rename = rename or _default_rename(model)
        self.info, self._filled, self._warned = StepInfo(), False, False
        self._casts, self._unsynced = cast_inputs, 0
        self.trains = train
        if activations != "auto" and not isinstance(activations, int):
            raise ValueError(f'zero: activations is {activations!r}: give "auto" or a number of bytes')
        self._activations = activations
        self._compared: Compared | None = None  # with the first step
        self._saving = False  # in the background, perhaps
        self._declaring = self._loading = False  # True: an exception came into it
        layers = [module for module in model.modules() if hasattr(module, "adapter_layer_names")]
        self._adapters = {
            p for module in layers for p in module.parameters() if p.requires_grad
        }  # PEFT freezes them while they are off
        self._puts: list[tuple[Leaf, torch.Tensor]] = []  # whole parameters to write
        self._parts: dict[Leaf, tuple[int, torch.Tensor]] = {}  # first values on their way to the engine
        self._samples = 0  # used by the steps so far, those before a load included
        self._stepping: int | None = None  # the samples after the step that has begun
        self._plan: _header.zero_plan | None = None
        self._places = {p.device for p in model.parameters()}
        place = gpu(parameter, device)
        options = meeting_point() | place | {"discard_shadow": 1, "threads": torch.get_num_threads(), "total_steps": total_steps}
        if secret:
            options["secret"] = secret.encode()
        self._runtime = _header.zero_runtime(log=_log, interrupted=_abi.interrupted, **options)
        own, pieces = isinstance(config, dict) or optimizer is not None, False
        if optimizer is not None:
            config, pieces = configure(json.loads(_abi.config_json(config)), model, optimizer)
        handle = lib.zero_engine_open(_abi.config_json(config) if own else config, self._runtime)
        self._handle: int = handle
        self._closing = weakref.finalize(self, end, handle, os.getpid())
        try:
            if free_order:
                lib.zero_engine_free_order_within(handle, 0 if free_order is True else free_order)
            self._open(model, device, bool(free_order), place.get("cuda_stream") or 0)
            self.optimizer = Optimizer(self, optimizer, pieces)
            if self.optimizer.pieces:
                self.optimizer.pieces.check(self)
            engines[model] = weakref.ref(self)
        except BaseException:
            self._let_go()
            raise

    def _open(self, model: nn.Module, device: torch.device | None, free_order: bool, stream: int) -> None:
        handle = self._handle
        index = lib.zero_engine_cuda(handle, None)
        self.device = torch.device("cuda", index) if index >= 0 else torch.device("cpu")
        if names_gpu(device) and device != self.device:
            raise ValueError(
                f"zero: device is {device}, and this rank's is {self.device}, by device.type or device.index in the configuration or by "
                "LOCAL_RANK: give the same one, or none"
            )
        self.rank: int = lib.zero_engine_rank(handle)
        self.size: int = lib.zero_engine_size(handle)
        self._shards = self.setting("zero_optimization.stage") == "3"
        self.micro_batch: int = lib.zero_engine_micro_batch(handle)
        self.accumulation_steps: int = lib.zero_engine_accumulation_steps(handle)
        self.train_batch: int = lib.zero_engine_train_batch(handle)
        self.dtype = _DTYPES[lib.zero_engine_dtype(handle)]
        sharded = self.size > 1 and self._shards  # below, each rank evaluates by itself
        for module in model.modules() if sharded else ():
            if hasattr(module, "generate"):  # transformers then lets all ranks go on until the last one ends (synced_gpus)
                module.__dict__["_is_fsdp_managed_module"] = True
        self._early = self.setting("zero_optimization.update_in_backward") == "true"
        self._passes = Passes(model, handle, free_order, self._prepare, self._count_step)
        self._passes.check_eager()
        self._passes.attach_model()
        self._by_program = self.setting("gradient_accumulation_by_program") == "true"
        self._passes.limit = None if self._by_program else self.accumulation_steps
        if index >= 0:
            torch.cuda.set_device(self.device)
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

    def _prepare_between(self, micro_steps: bool = True) -> None:
        """For what has its place between two steps, or also between `micro_steps`: zero_grad() makes the former."""
        self._prepare()
        passes = self._passes
        if not passes.waiting:
            passes.drop_cleared()
        if passes.done and not micro_steps:
            raise ZeroError(
                "zero: this has its place between two steps, and this step has begun: call engine.step(last=True) before, or "
                "engine.optimizer.zero_grad(), which drops its micro-steps"
            )

    def _traced(self, args: Any, kwargs: Any) -> _units.Trace | None:
        """The forward that gives the order of units: that of these arguments; without any, or if it leaves modules out, as generate() does
        at first, that of the model's dummy_inputs."""
        record = _units.trace(self.model, args, kwargs or {}, self.device) if args or kwargs else None
        if record and {m for m in self.model.modules() if m._parameters} <= {*record.calls}:
            return record
        try:  # transformers' are tokens, on the CPU, also those of a vision model
            dummies = pytree.tree_map_only(torch.Tensor, lambda t: t.to(self.device), getattr(self.model, "dummy_inputs", None))
            other = _units.trace(self.model, (), dummies, self.device) if dummies else None
        except Exception as error:  # noqa: BLE001
            logger.info("the model's dummy_inputs do not fit it: %s", error)
            other = None
        return max((found for found in (record, other) if found), key=lambda found: len({*found.calls}), default=None)

    def _commit(self, args: Any = (), kwargs: Any = None) -> Any:
        if self._plan is None:
            self._check_place()
            check_apart(self.model)
            _parts.agree("commit", [p for p in self.model.parameters() if hasattr(p, "ds_tensor")])
            record, cut = self._traced(args, kwargs), [*filter(_parts.is_cut, self.model.parameters())]
            if cut and self._any(record is None and bool(args or kwargs)):  # a forward that depends on its data
                with _parts.joined(cut):
                    record = self._traced(args, kwargs)
            laid_out = _units.lay_out(self.model, self._spec, record, self._ignored)
            if self._declaring:
                raise ZeroError(
                    "zero: an exception came while the engine learnt the model: call engine.close(), then fully_shard again"
                )
            self._declaring = True
            left = self._left_to_program(args, kwargs, *laid_out)
            self._declare(*laid_out)
            if left:
                lib.zero_engine_reserve(self._handle, _header.ZERO_DEVICE, left, "activations")
            self._plan = self._take_memory()
            if left and self._passes.device:
                self._compared = Compared(self.device, left)
        return self._plan

    def _left_to_program(self, args: Any, kwargs: Any, groups: list[_units.Group], held: dict[str, nn.Parameter]) -> int:
        """Bytes of the device that the plan leaves to the program: those of the rank that needs most."""
        if self._activations != "auto":
            return int(self._activations)
        if not torch.is_grad_enabled():
            logger.warning(
                "activations are planned of a forward under torch.no_grad(): call engine.commit(...) with a training batch before it"
            )
        size, units = 0, {group.module: group.parameters.values() for group in groups}
        try:
            if not args and not kwargs:
                raise ValueError("there is no batch: call engine.commit(...) with one")
            size = with_margin(peak(self.model, args, kwargs, self.device, units, held.values(), self.dtype, self._casts))
        except Exception as error:  # noqa: BLE001
            logger.warning(
                "activations are in no plan, since a step without data failed; give fully_shard activations=BYTES: %s", error
            )
        return int(max(self._sum([size * (rank == self.rank) for rank in range(self.size)])))

    def _check_place(self) -> None:
        for name, p in self.model.named_parameters():
            if p.device.type == "cuda" and p.device not in (self.device, *self._places) and p not in self._ignored:
                raise ZeroError(
                    f"zero: parameter {name} is on {p.device} since fully_shard, whose engine is on {self.device}: move the model before it, "
                    "or give fully_shard device="
                )

    def _free_cache(self) -> None:
        """What PyTorch has cached on the GPU is free for the engine."""
        if self._passes.device:
            torch.cuda.empty_cache()

    def _take_memory(self) -> Any:
        """The engine takes all of its memory before it asks for values: until then a model on the GPU waits in host memory."""
        places: dict[Any, torch.device] = {
            leaf.parameter: leaf.parameter.device for leaf in self._passes.leaves if leaf.parameter.device.type == "cuda"
        }
        try:
            for p in places:
                p.data = p.data.to("cpu")
                if _parts.is_cut(p):
                    p.ds_tensor = p.ds_tensor.to("cpu")
            self._free_cache()
            return lib.zero_engine_commit(self._handle)
        except BaseException:
            for p, place in places.items():
                p.data = p.data.to(place)
            raise

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
            shape = tuple(_parts.shape(p)) or (1,)
            excess = max(0, len(shape) - _header.ZERO_DIMS_MAX)
            shape = (math.prod(shape[: excess + 1]), *shape[excess + 1 :])
            param = _header.zero_param(
                name=(f"{leaf.name}@{name}" if owner else leaf.name).encode(),
                dims=len(shape),
                flags=0 if owner else self._flags(p, key),
                tied_to=leaf.name.encode() if owner else None,
                slot=C.pointer(self._slot),
                group=self.optimizer.group.get(p, 0),
                shape=(C.c_uint64 * _header.ZERO_DIMS_MAX)(*shape),
                alias=(key if leaf.name == own else own).encode(),  # patterns fit the model's own names, too
            )
            lib.zero_unit_add_param(handle, param)
            leaf.handle = leaf.handle or lib.zero_unit_param(handle, i)
            leaves.append(leaf)
        return Use(name, module, handle, index, leaves, (C.c_void_p * len(leaves))())

    def _flags(self, p: nn.Parameter, key: str) -> int:
        trains = _header.ZERO_GIVES_GRAD if self._to_train(p) else _header.ZERO_FROZEN
        return trains | (_header.ZERO_NO_DECAY if key in self._no_decay else 0)

    def _to_train(self, p: nn.Parameter) -> bool:
        return self.trains and (p.requires_grad or p in self._adapters) and self.optimizer.holds(p)

    def _fill(self) -> None:
        """Moves the values of parameters to the engine, one parameter after another."""
        for leaf in self._passes.leaves:
            p: Any = leaf.parameter
            if _parts.is_cut(p) and leaf not in self._parts:
                first, count = owned(leaf, _header.ZERO_PARAM)
                self._parts[leaf] = first, _parts.whole(p).view(-1)[first : first + count].to("cpu", copy=True)
                p.ds_tensor = torch.empty(0)
        given = self._agree([leaf.parameter for leaf in self._passes.leaves if leaf not in self._parts])
        value = first_values(self.model, self._init, lib.zero_engine_seed(self._handle), given)
        by_name = {leaf.name: leaf for leaf in self._passes.leaves}

        def fill(user: int, name: bytes, first: int, count: int, out: int) -> None:
            if not _abi.raised:  # else the call fails, but asks for the other values first
                leaf = by_name[name.decode()]
                begin, values = self._parts[leaf] if leaf in self._parts else (0, value(leaf))
                part = values[first - begin :][:count].float()
                if first < begin or part.numel() != count:
                    raise AssertionError(f"{leaf.name}: {count} values from {first} on, of {values.numel()} from {begin} on")
                C.memmove(out, part.data_ptr(), part.nbytes)

        lib.zero_engine_fill(self._handle, _abi.callback(_header.zero_fill_fn, fill), None)

    def _broadcast(self, t: torch.Tensor) -> torch.Tensor:
        """Rank 0's bytes in the place of this rank's, in the memory of a tensor on the CPU."""
        lib.zero_engine_broadcast(self._handle, t.data_ptr(), t.nbytes)
        return t

    def _any(self, here: bool) -> bool:
        """Whether it is so on any rank."""
        return bool(self._sum([here])[0])

    def _sum(self, values: list[int] | list[bool]) -> list[float]:
        """Of each value over the ranks."""
        sums: list[float] = []
        for i in range(0, len(values), 64):  # the most of a call
            part = (C.c_double * len(values[i : i + 64]))(*values[i : i + 64])
            lib.zero_engine_sum(self._handle, part, len(part))
            sums += part
        return sums

    def _agree(self, tensors: list[Any]) -> Given:
        """Where ranks have other values, all take rank 0's, as under DistributedDataParallel: those that this rank has on the meta device are
        returned; None: rank 0 has that one on the meta device."""
        given: Given = {}
        if self.size == 1:
            return given
        mine = digests(self.model, tensors)
        theirs = self._broadcast(mine.clone())
        if not self._any(not torch.equal(mine, theirs)):
            return given
        logger.info("the ranks have models with other values: all take those of rank 0")
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
        known = {leaf.parameter for leaf in passes.leaves} | self._ignored
        self._agree([*moved.values(), *(p for p in model.parameters() if p not in known)])
        forget(model)
        for leaf in passes.leaves:
            leaf.wake = None if self._shards else passes.wake
            leaf.attach(_DTYPES[lib.zero_param_dtype(leaf.handle)], self.device)
        self._parts.clear()
        _gathered.known.update((id(leaf.parameter), weakref.ref(self)) for leaf in passes.leaves)
        for use in [*itertools.chain.from_iterable(passes.uses.values()), *filter(None, [passes.held])]:
            use.trains = any(leaf.trains for leaf in use.leaves)
            use.lends = bool(lib.zero_unit_reads_given(use.handle))
        self._hook()
        self._filled = True
        C.CDLL(None).malloc_trim(0)

    def _hook(self) -> None:
        passes = self._passes
        passes.attach()
        if self._casts and self.dtype != torch.float32:
            held = {leaf.parameter for leaf in passes.held.leaves} if passes.held else set()
            hooks, passes.cast = cast_inputs(self.model, passes.uses.keys(), held)
            passes.hooks += hooks

    def hook_again(self) -> None:
        """After a program may have taken the hooks of all modules off."""
        for hook in self._passes.hooks:
            hook.remove()
        self._passes.hooks.clear()
        self._passes.attach_model()
        if self._filled:
            self._hook()

    def _count_step(self) -> None:
        """An exception may have come between the engine's step and the line that counts it."""
        if self._stepping is not None:
            if not lib.zero_engine_passes(self._handle):
                self._samples, self._passes.done, self._passes.mode = self._stepping, 0, None
                self.optimizer.follow()
            self._stepping = None

    def setting(self, key: str) -> str | None:
        """The value of a key of the configuration as JSON text, "optimizer.params.lr"; None: it has none."""
        text: str | None = lib.zero_engine_setting(self._handle, key)
        return text

    def _let_go(self) -> None:
        """Ends the engine, and leaves the model without its hooks."""
        passes = self.__dict__.get("_passes")
        try:
            if passes:
                for leaf in passes.leaves:
                    _gathered.known.pop(id(leaf.parameter), None)
                passes.close()
        finally:
            for module in self.model.modules():
                module.__dict__.pop("_is_fsdp_managed_module", None)
            if engines.get(self.model, lambda: None)() is self:  # the next one has it already, perhaps
                del engines[self.model]
            if "optimizer" in self.__dict__:
                self.optimizer.let_go()
            self.__dict__.pop("_passes", None)
            self.__dict__.pop("_handle", None)
            self._closing()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ZeroError(NO_COPY)

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("_passes", "_handle"):
            raise ZeroError("zero: the engine is closed")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
