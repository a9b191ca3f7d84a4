"""deepspeed.zero: a model that is made for stage 3, and whole parameters of an engine.

A parameter of stage 3 has DeepSpeed's attributes, by which programs tell whether to gather. One that was made inside of Init is cut until
its engine has it (_parts.py); another one is whole until then."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook, register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

import zero
from zero._abi import ZeroError
from zero._gathered import find
from zero._header import ZERO_GRAD as GRAD
from zero._header import ZERO_PARAM as PARAM
from zero._header import ZERO_STATE0 as STATE0
from zero._header import ZERO_STATE1 as STATE1
from zero._parts import SHARE, agree, copied, cut, ids, is_cut, join, of_rank, shared, unique
from zero._private import pytree, storage_uses
from zero.deepspeed.comm import init_distributed
from zero.deepspeed.config import loaded


class ZeroParamStatus(Enum):
    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


class ZeroParamType(Enum):
    NORMAL = 1
    PARTITIONED = 2
    REMOTE = 3


OffloadDeviceEnum = Enum("OffloadDeviceEnum", {"none": "none", "cpu": "cpu", "nvme": "nvme"})
OffloadStateTypeEnum = Enum("OffloadStateTypeEnum", ["optim_states", "hp_params", "lp_params", "lp_grads", "contiguous_grad_buffer"])


def mark(parameters: Iterable[Any]) -> None:
    """They are of stage 3."""
    for p in parameters:
        if not hasattr(p, "ds_id"):
            p.ds_id, p.ds_numel, p.ds_shape = next(ids), p.numel(), p.shape
            p.ds_status, p.ds_active_sub_modules = ZeroParamStatus.NOT_AVAILABLE, set()


def without_closed(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """A hook of state_dict on ranks that save nothing: empty tensors in place of parameters that are not here, as in DeepSpeed. On rank 0
    the parameter says how to come by its values."""
    named = list(module.named_parameters(prefix.rstrip("."), remove_duplicate=False))
    leaves = [leaf for found in find(p for _, p in named).values() for leaf in found]
    closed = {leaf.parameter for leaf in leaves if not leaf.shown and not leaf.away}  # none of a copy, or of an engine that has ended
    for name, p in named:
        if p in closed and type(state.get(name)) is torch.Tensor:
            state[name] = state[name].new_empty(0)


# What a program may ask of a parameter that is cut, and leave it so; and what is answered of the whole.
_LOOKS = {"dtype", "device", "is_cuda", "requires_grad", "requires_grad_", "grad", "grad_fn", "is_leaf", "is_meta", "layout"}
_LOOKS |= {"is_floating_point", "is_complex", "element_size", "__repr__", "__format__", "__hash__", "__dict__"}
_SHAPE: dict[str, Callable[..., Any]] = {
    "shape": lambda shape: shape,
    "size": lambda shape, dim=None: shape if dim is None else shape[dim],
    "dim": len,
    "ndim": len,
    "ndimension": len,
    "numel": torch.Size.numel,
    "nelement": torch.Size.numel,
    "__len__": lambda shape: shape[0],
}


class Init(TorchFunctionMode):
    """Inside, modules are made for stage 3: when a module becomes a part of another one, or at the end, each rank keeps its part of rank 0's
    values. Where a constructor uses parameters of a module in it, they are whole again until the end: so it makes the same values."""

    def __init__(
        self,
        module: nn.Module | None = None,
        *_: Any,
        config_dict_or_path: Any = None,
        config: Any = None,
        enabled: bool = True,
        **__: Any,
    ) -> None:
        super().__init__()
        settings = config_dict_or_path if config_dict_or_path is not None else config
        stage = loaded(settings).get("zero_optimization", {}).get("stage", 0) if settings is not None else 3
        self.enabled = enabled and stage == 3
        self._made: dict[nn.Module, None] = {}  # with parameters that are whole
        self._woken: list[Any] = []
        if self.enabled:
            init_distributed()
        if module is not None and self.enabled:
            mark(module.parameters())
            self._cut(module.parameters())

    def __enter__(self) -> Any:
        if not self.enabled:
            return self

        def parameter(module: nn.Module, name: str, parameter: Any) -> None:
            if parameter is not None and not hasattr(parameter, "ds_id") and not is_lazy(parameter):
                if storage_uses and not parameter.is_meta and not parameter.numel() and shared(parameter):
                    raise ValueError(SHARE)  # nn.Parameter(p) does not ask before
                mark((parameter,))
                copied(parameter)
            self._made[module] = None

        def child(module: nn.Module, name: str, child: nn.Module | None) -> None:
            self._cut(p for p in (child.parameters() if child else ()) if hasattr(p, "ds_id") and not hasattr(p, "ds_tensor"))

        self._hooks = register_module_parameter_registration_hook(parameter), register_module_module_registration_hook(child)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        if not self.enabled:
            return
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        if error == (None, None, None):
            made = [p for module in self._made for p in module.parameters()]
            self._cut([*self._woken, *(p for p in made if hasattr(p, "ds_id"))])
            self._made, self._woken = {}, []

    def _cut(self, parameters: Iterable[Any]) -> None:
        chosen = list(parameters)
        own = _on_engines(chosen)
        cut(p for p in chosen if p not in own)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asks = function.__self__ if getattr(function, "__name__", "") in ("__get__", "__set__") else function
        name, kwargs = getattr(asks, "__name__", ""), kwargs or {}
        if name in _SHAPE and args and is_cut(args[0]):
            return _SHAPE[name](args[0].ds_shape, *args[1:], **kwargs)
        if name not in _LOOKS and name not in _SHAPE:
            woken = unique(p for p in pytree.tree_leaves((args, kwargs)) if is_cut(p))
            join(woken)
            self._woken += woken
        return function(*args, **kwargs)


def _on_engines(parameters: Iterable[Any]) -> set[Any]:
    return {leaf.parameter for leaves in find(parameters).values() for leaf in leaves}


class GatheredParameters:
    """Inside, these parameters are whole. With `modifier_rank`, what that rank writes is everyone's afterwards, and lasts."""

    def __init__(self, params: Any, modifier_rank: int | None = None, fwd_module: Any = None, enabled: bool = True) -> None:
        params = [params] if isinstance(params, torch.Tensor) else params
        named = unique(p for p in params if isinstance(p, torch.Tensor)) if enabled else []
        self.params = sorted(named, key=lambda p: getattr(p, "ds_id", -1))  # a program's set has another order on each rank
        self.modifier_rank, self._stack = modifier_rank, ExitStack()

    def __enter__(self) -> None:
        own = _on_engines(self.params)
        self.marked = [p for p in self.params if hasattr(p, "ds_id") and p.ds_status != ZeroParamStatus.AVAILABLE]
        free = [p for p in self.marked if p not in own]
        for p in agree("gather", free, [p.is_meta or is_cut(p) for p in free]):  # its engine takes rank 0's values
            of_rank(p, 0)
        self._stack.enter_context(zero.gathered(self.params, modify=self.modifier_rank))
        for p in self.marked:
            p.ds_status = ZeroParamStatus.AVAILABLE

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for p in self.marked:
            p.ds_status = ZeroParamStatus.NOT_AVAILABLE
        self._stack.__exit__(kind, error, trace)


@contextmanager
def unwrap_model_for_generation(model: Any) -> Iterator[nn.Module]:
    """The module of an engine, whole."""
    with GatheredParameters(model.parameters()):
        yield getattr(model, "module", model)


def register_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """The engine finds by itself which modules use a parameter."""


unregister_external_parameter = register_external_parameter


def shutdown_init_context() -> None: ...


restore_init_context = shutdown_init_context
zero_wrapper_for_fp_tensor_constructor: Any = None  # transformers puts its own here while it makes a model
_orig_torch_arange = torch.arange


# ---- leaf modules: the engine's units need none ----


def set_z3_leaf_module(model: nn.Module, flag: bool = True) -> None:
    model.__dict__["_z3_leaf"] = flag


def z3_leaf_module(model: nn.Module) -> bool:
    return bool(model.__dict__.get("_z3_leaf"))


def _set_leaves(model: nn.Module, classes: Any, flag: bool) -> list[nn.Module]:
    kinds, names = tuple(c for c in classes if isinstance(c, type)), {c for c in classes if isinstance(c, str)}
    full = "{0.__module__}.{0.__qualname__}".format
    found = [m for m in model.modules() if isinstance(m, kinds) or names & {type(m).__name__, full(type(m))}]
    for module in found:
        set_z3_leaf_module(module, flag)
    return found


def set_z3_leaf_modules(model: nn.Module, leaf_module_classes: Any, raise_if_not_found: bool = True) -> list[nn.Module]:
    """A module of these classes whose experts are used in any order: the engine's units follow the blocks, and hold them."""
    found = _set_leaves(model, leaf_module_classes, True)
    if not found and raise_if_not_found:
        raise ValueError(f"No modules of type {leaf_module_classes} found in model {model}")
    return found


def set_z3_leaf_modules_by_name(
    model: nn.Module, names: Iterable[str], raise_if_not_found: bool = True
) -> tuple[list[nn.Module], list[str]]:
    """By the modules' own names; what is found, and the names that are not."""
    modules = dict(model.named_modules())
    missing = [name for name in names if name not in modules]
    if missing and raise_if_not_found:
        raise ValueError(f"zero: the model has no modules {', '.join(missing)}")
    found = [modules[name] for name in names if name in modules]
    for module in found:
        set_z3_leaf_module(module)
    return found, missing


def unset_z3_leaf_modules(model: nn.Module, leaf_module_classes: Any, raise_if_not_found: bool = True) -> list[nn.Module]:
    return _set_leaves(model, leaf_module_classes, False)


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if z3_leaf_module(module)]


# ---- whole values, by name: collective ----


_MOMENTS = {"exp_avg": STATE0, "exp_avg_sq": STATE1}
_STATES = {"adam": _MOMENTS, "lamb": _MOMENTS, "lion": {"exp_avg": STATE0}, "adagrad": {"sum": STATE0}}  # by a word in the type
_STATES |= {"sgd": {"momentum_buffer": STATE0}, "muon": {"momentum_buffer": STATE0}}


def _read(p: Any, kind: int) -> torch.Tensor:
    for engine, (leaf,) in find([p]).items():
        return engine._read(leaf, kind)
    raise ZeroError("zero: the parameter is on no engine: call deepspeed.initialize and the model's first forward before")


def safe_get_full_fp32_param(param: Any) -> torch.Tensor | None:
    return _read(param, PARAM)


def safe_get_full_grad(param: Any) -> torch.Tensor | None:
    """Between the last backward of a step and step(): the mean, not clipped."""
    return _read(param, GRAD)


def safe_get_full_optimizer_state(param: Any, optim_state_key: str) -> torch.Tensor | None:
    for engine in find([param]):
        kind = json.loads(engine.setting("optimizer.type") or '""')
        if engine.optimizer.pieces:
            kind = type(engine.optimizer.client).__name__
            raise ZeroError(f"zero: {kind} runs on each rank's own elements: no state of it is whole; see the optimizer's own `state`")
        if any("optimizer" in group for group in json.loads(engine.setting("param_groups") or "[]")):
            raise ZeroError("zero: param_groups has another optimizer, and safe_get_full_optimizer_state does not tell them apart")
        states = next((states for word, states in _STATES.items() if word in kind.lower()), {})
        if optim_state_key not in states:
            raise ZeroError(f"zero: {kind} has no state {optim_state_key!r} here: ask for one of {', '.join(states) or 'none'}")
        return _read(param, states[optim_state_key])
    return _read(param, STATE0)  # on no engine: it says so
