"""The first values of parameters, and safetensors files."""

import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.utils.stateless import _reparametrize_module

if TYPE_CHECKING:
    from zero._leaf import Leaf

Init = Callable[[nn.Module], None]
_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_NAMES |= {torch.int64: "I64", torch.bool: "BOOL", torch.uint8: "U8"}
directories: WeakKeyDictionary[nn.Module, Path] = WeakKeyDictionary()  # of load_pretrained


class Safetensors:
    """A directory's model.safetensors, or the files of its index: parameters by name, read where they are asked for. A name may
    lack the base model's prefix, in the files or in the model."""

    def __init__(self, directory: Path, prefix: str) -> None:
        from safetensors import safe_open

        index = directory / "model.safetensors.index.json"
        names = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
        files: list[Any] = [safe_open(directory / name, framework="pt") for name in sorted(names)]
        self.prefix = f"{prefix}."
        self.places = {name.removeprefix(self.prefix): (file, name) for file in files for name in file.keys()}  # noqa: SIM118

    def find(self, names: list[str], shape: torch.Size) -> torch.Tensor:
        """The tensor by the first of these names that is there."""
        file, name = next(filter(None, (self.places.get(n.removeprefix(self.prefix)) for n in names)), (None, ""))
        if file is None:
            raise ValueError(f"zero: no file has a tensor {' or '.join(names)}")
        value: torch.Tensor = file.get_tensor(name)
        if value.shape != shape:
            raise ValueError(f"zero: {name} is {list(value.shape)} in the file, and {list(shape)} in the model")
        return value


def write_safetensors(path: Path, entries: dict[str, tuple[torch.Size, torch.dtype]], tensors: Iterable[torch.Tensor]) -> None:
    """One file of the tensors that `tensors` yields one after another."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (shape, dtype) in entries.items():
        begin, end = end, end + shape.numel() * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (_, dtype), tensor in zip(entries.values(), tensors, strict=True):
            flat: Any = tensor.detach().to("cpu", dtype).contiguous().view(-1).view(torch.uint8).numpy()
            file.write(flat)


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
    init = init or getattr(model, "_init_weights", None) or _reset
    made: dict[int, torch.Tensor] = {}
    values: dict[str, torch.Tensor] = {}
    for prefix, module in model.named_modules():
        for key, t in {**module._parameters, **module._buffers}.items() if module in modules else ():
            if isinstance(t, nn.Parameter):
                made.setdefault(id(t), nn.Parameter(_unset(t.shape, torch.float32)))
            elif t is not None and t.is_meta:
                made.setdefault(id(t), _unset(t.shape, t.dtype))
            if id(t) in made:
                values[f"{prefix}.{key}" if prefix else key] = made[id(t)]
    with _reparametrize_module(model, values), torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # the CPU's alone
        for module in reversed([m for m in model.modules() if m in modules]):  # children first, as Module.apply
            init(module)
    return values


def first_values(model: nn.Module, init: Init | None, seed: int) -> Callable[["Leaf"], torch.Tensor]:
    """A function that returns a parameter's first value, flat and fp32: of load_pretrained's files, or its own, or from
    `init`, of one unit at a time."""
    aliases: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, p in model.named_parameters(remove_duplicate=False):
        aliases[p].append(name)
    files = Safetensors(directories[model], getattr(model, "base_model_prefix", "")) if model in directories else None

    @lru_cache(maxsize=1)
    def unit(name: str, modules: frozenset[nn.Module]) -> dict[str, torch.Tensor]:
        return initialised(model, modules, init, seed ^ zlib.crc32(name.encode()))

    @lru_cache(maxsize=1)
    def value(leaf: "Leaf") -> torch.Tensor:
        names, value = aliases[leaf.parameter], leaf.parameter.detach()
        if files:
            value = files.find(names, value.shape)
        elif value.is_meta:
            value = first_value(model, "parameter", names, unit(leaf.unit, leaf.modules))
        return value.to("cpu", torch.float32).contiguous().view(-1)

    return value
