"""The first values of parameters and buffers."""

import itertools
import os
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import nn

from zero._files import Files, own_name, plain
from zero._parts import shape

if TYPE_CHECKING:
    from zero._leaf import Leaf

Init = Callable[[nn.Module], None]
Given = dict[nn.Parameter, torch.Tensor | None]
_MARK = "_zero_files"  # of a tensor, and of its module: a copy of the module has it, too
_opened: WeakSet[Files] = WeakSet()

# ---- from files ----


def _mark(model: nn.Module, name: str, t: torch.Tensor, source: tuple[Files, str]) -> None:
    module, _, key = name.rpartition(".")
    setattr(t, _MARK, source)
    model.get_submodule(module).__dict__.setdefault(_MARK, {})[key] = source
    source[0].lazy |= {source[1]} if isinstance(t, nn.Parameter) else set()


def _marks(model: nn.Module, t: torch.Tensor, names: Iterable[str]) -> list[tuple[Files, str]]:
    """The files that load_pretrained has named for this tensor: for itself, or for the place that it has in a module."""
    found = [getattr(t, _MARK, None)]
    for module, _, key in (name.rpartition(".") for name in names):
        found.append(model.get_submodule(module).__dict__.get(_MARK, {}).get(key))
    return [source for source in found if source]


@torch.no_grad()
def load_pretrained(model: nn.Module, directory: str | os.PathLike[str], *, strict: bool = False) -> nn.Module:
    """The model's parameters and buffers take their values from the safetensors files in `directory`, as transformers writes them:
    call it before fully_shard. Those on the meta device take them when fully_shard moves them to the engine: no rank ever holds more
    than one parameter and its own shard. A warning names what the files lack; with `strict` that is an error."""
    given, directory, model = model, Path(directory), plain(model)
    files, missing, aliases = Files(directory, model), list[str](), dict[int, tuple[Any, list[str]]]()
    for name, t in model.state_dict(keep_vars=True).items():
        if isinstance(t, torch.Tensor):
            aliases.setdefault(id(t), (t, []))[1].append(name)
    for t, names in aliases.values():
        source = next((n for n in map(own_name, names) if n in files.groups), None)
        if source is None:
            missing.append(names[0])
            continue
        if files.shapes[source] != t.shape:
            raise ValueError(f"zero: {source} is {list(files.shapes[source])} in {directory}, and {list(t.shape)} in the model")
        for name in names if t.is_meta else ():
            _mark(model, name, t, (files, source))
        if not t.is_meta:
            value = files.get(source)
            if (value.is_floating_point(), value.is_complex()) != (t.is_floating_point(), t.is_complex()):
                raise ValueError(f"zero: {source} is of type {value.dtype} in {directory}, and {t.dtype} in the model")
            t.copy_(value)
    files.last = None, {}
    if files.lazy:
        _opened.add(files)
    if missing:
        none, more = len(missing) == len(aliases), f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        lacks = f"zero: no file in {directory} has {', '.join(missing[:5])}{more}"
        if none or strict:
            raise ValueError(f"{lacks}: {'give load_pretrained the model of these files' if none else 'leave out strict=True'}")
        warnings.warn(f"{lacks}: first values as without files", stacklevel=3)
    return given


def forget(model: nn.Module) -> None:
    """The values of its tensors are there: nothing holds the files any more."""
    for module in model.modules():
        for files, _ in module.__dict__.pop(_MARK, {}).values():
            _opened.discard(files)
        for p in module._parameters.values():
            getattr(p, "__dict__", {}).pop(_MARK, None)


def check_taken(model: nn.Module, unnamed: list[str]) -> None:
    """After all parameters of a model have their sources. `unnamed`: those on the meta device without one."""
    for files in list(_opened):
        left = sorted(files.lazy - files.taken)
        if unnamed and not files.taken and any(type(module) is files.kind for module in model.modules()):
            raise ValueError(
                f"zero: load_pretrained has named {files.directory} for another {files.kind.__name__} than the one in this model, whose "
                f"parameter {unnamed[0]} is on the meta device: call load_pretrained on the module that fully_shard gets"
            )
        if left and files.taken:
            _opened.discard(files)
            warnings.warn(f"zero: no parameter took {', '.join(left[:5])} of {files.directory} (load_pretrained)", stacklevel=2)


def check_apart(model: nn.Module) -> None:
    """Two tensors in the same memory, one of them a parameter that is trained, would be two values on the engine."""

    def place(name: str, t: Any) -> tuple[int, int, str, Any]:
        return t.data_ptr(), sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)) + 1, name, t

    def addresses(count: int, t: Any) -> Any:
        return t.data_ptr() + t.element_size() * torch.arange(count).as_strided(t.shape, t.stride()).reshape(-1)

    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name in (name for name, t in tensors.items() if nn.parameter.is_lazy(t)):
        raise ValueError(
            f"zero: {name} has no shape yet: call the model once under torch.no_grad() before fully_shard, as for other optimizers"
        )
    places = [place(n, t) for n, t in tensors.items() if t.numel() and not t.is_meta and t.layout == torch.strided]
    trained = {name for name, t in tensors.items() if isinstance(t, nn.Parameter) and t.requires_grad}
    places.sort(key=lambda found: found[:2])
    for (at, count, name, t), (next_at, next_count, other, u) in itertools.pairwise(places):
        overlap = next_at < at + count * t.element_size() and not trained.isdisjoint({name, other})
        if overlap and (t.dtype != u.dtype or bool(torch.isin(addresses(count, t), addresses(next_count, u)).any())):
            raise ValueError(
                f"zero: {name} and {other} share memory, and are two tensors, so that on the engine they would be two values: tie them "
                f"({other} = {name}), or give one a memory of its own (clone)"
            )


# ---- from functions ----

_UNSET = 0x7F  # the bytes that mark a value which nothing has set: no first value has them


def _bytes(t: torch.Tensor) -> torch.Tensor:
    return t.detach().reshape(-1).view(torch.uint8)


def _unset(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    t = torch.empty(shape, dtype=dtype, device="cpu")
    _bytes(t).fill_(_UNSET)
    return t


def _reset(module: nn.Module) -> None:
    """Sets a module's values as its constructor does: torch's attention has a function of another name."""
    for name in ("reset_parameters", "_reset_parameters"):
        if hasattr(module, name):
            getattr(module, name)()
            return


def _reset_adapters(model: nn.Module, modules: frozenset[nn.Module]) -> None:
    """Adapters of PEFT begin as their own function says, and not as other modules of their class: LoRA's B is zero."""
    for name, module in model.named_modules():
        if not hasattr(module, "adapter_layer_names") or modules.isdisjoint(module.modules()):
            continue
        for adapter, config in getattr(model, "peft_config", {}).items():
            if not hasattr(module, "reset_lora_parameters") or not hasattr(config, "init_lora_weights"):
                raise ValueError(
                    f"zero: the adapter {adapter} of {name} is on the meta device, and only LoRA's get first values there: make the "
                    'adapter on the CPU, outside of torch.device("meta")'
                )
            module.reset_lora_parameters(adapter, config.init_lora_weights)


def first_value(model: nn.Module, what: str, names: Iterable[str], values: dict[str, torch.Tensor]) -> torch.Tensor:
    """The value of the parameter or buffer that has these names."""
    name = next(name for name in names if name in values)
    value = values[name].detach()
    if value.numel() and bool((_bytes(value)[:64] == _UNSET).all()):
        module = type(model.get_submodule(name.rpartition(".")[0])).__name__
        raise ValueError(
            f"zero: {what} {name} of a {module} is on the meta device, and nothing gives it a first value, neither init= nor else the "
            "model's _init_weights, nor else its module's reset_parameters: give fully_shard init=, a function of a module that does, or "
            "make the module on the CPU"
        )
    return value


@torch.no_grad()
def initialised(model: nn.Module, modules: frozenset[nn.Module], init: Init | None, seed: int) -> dict[str, torch.Tensor]:
    """Values for the parameters and the meta buffers of these modules, by name: the same on all ranks. The model stays as
    it was. `init`: None is transformers' _init_weights, or reset_parameters."""
    adapts, init = init is None, init or getattr(model, "_init_weights", None) or _reset
    made: dict[int, torch.Tensor] = {}
    places: list[tuple[str, dict[str, Any], str, Any]] = []  # a name, and where its tensor is
    for prefix, module in model.named_modules():
        for store in (module._parameters, module._buffers) if module in modules else ():
            for key, t in store.items():
                if isinstance(t, nn.Parameter):
                    made.setdefault(id(t), nn.Parameter(_unset(shape(t), torch.float32)))
                elif t is not None and t.is_meta:
                    made.setdefault(id(t), _unset(t.shape, t.dtype))
                if id(t) in made:
                    places.append((f"{prefix}.{key}" if prefix else key, store, key, t))
    try:
        for _, store, key, t in places:
            store[key] = made[id(t)]
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(seed)  # the CPU's alone
            for module in reversed([m for m in model.modules() if m in modules]):  # children first, as Module.apply
                init(module)
            if adapts:
                _reset_adapters(model, modules)
        return {name: store[key] for name, store, key, _ in places}
    finally:
        for _, store, key, t in places:
            store[key] = t


OF_FILES, ON_META = -2, -1


def digests(model: nn.Module, tensors: list[torch.Tensor]) -> torch.Tensor:
    """By which ranks compare their first values: a checksum of bytes, or where the value comes from."""
    names = {p: name for name, p in model.named_parameters()}

    def digest(t: torch.Tensor) -> int:
        if t.is_meta:
            return OF_FILES if _marks(model, t, [names[t]]) else ON_META  # type: ignore[index]
        data: Any = _bytes(t.detach().to("cpu").contiguous()).numpy()
        return zlib.adler32(data)

    return torch.tensor([digest(t) for t in tensors], dtype=torch.int64)


def first_values(model: nn.Module, init: Init | None, seed: int, given: Given) -> Callable[["Leaf"], torch.Tensor]:
    """A function that returns a parameter's first value, flat and fp32: what rank 0 has `given`, or that of load_pretrained's files, or
    its own, or from `init`, of one unit at a time."""
    aliases: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, p in model.named_parameters(remove_duplicate=False):
        aliases[p].append(name)
    sources = {p: marks[0] for p, names in aliases.items() if (marks := _marks(model, p, names)) and (p.is_meta or hasattr(p, _MARK))}
    for p, names in aliases.items():
        for files, name in _marks(model, p, names):
            files.taken.add(name)
            if p not in sources:
                by_program = f"zero: {names[0]} is not on the meta device any more, so its value is the program's, and not that of"
                warnings.warn(f"{by_program} {files.directory} (load_pretrained)", stacklevel=2)
    check_taken(model, [names[0] for p, names in aliases.items() if p.is_meta and p not in sources and p not in given])

    @lru_cache(maxsize=1)
    def unit(name: str, modules: frozenset[nn.Module]) -> dict[str, torch.Tensor]:
        return initialised(model, modules, init, seed ^ zlib.crc32(name.encode()))

    @lru_cache(maxsize=1)
    def value(leaf: "Leaf") -> torch.Tensor:
        p = leaf.parameter
        value = given.get(p, p)
        if value is p and p in sources:
            value = sources[p][0].get(sources[p][1])
        elif value is None or value.is_meta:
            value = first_value(model, "parameter", aliases[p], unit(leaf.unit, leaf.modules))
        return value.detach().to("cpu", torch.float32).contiguous().view(-1)

    return value


def buffer_value(model: nn.Module, name: str, buffer: torch.Tensor, made: dict[str, torch.Tensor]) -> torch.Tensor:
    """The first value of a buffer: its own, or that of load_pretrained's files, or what was `made`."""
    if not buffer.is_meta:
        return buffer
    marks = _marks(model, buffer, [name])
    return marks[0][0].get(marks[0][1]).to(buffer.dtype) if marks else first_value(model, "buffer", [name], made)
