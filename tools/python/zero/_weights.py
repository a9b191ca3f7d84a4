"""Where the first values of parameters come from, and safetensors files."""

import json
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

Init = Callable[[nn.Module], None]
_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_NAMES |= {torch.int64: "I64", torch.bool: "BOOL", torch.uint8: "U8"}


class Safetensors:
    """A directory's model.safetensors, or the files of its index: parameters by name, read where they are asked for."""

    def __init__(self, directory: str | Path, prefix: str = "") -> None:
        from safetensors import safe_open

        index = Path(directory, "model.safetensors.index.json")
        files = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
        self.prefix = prefix + "." if prefix else ""
        opened: list[Any] = [safe_open(Path(directory, file), framework="pt") for file in sorted(files)]
        self.tensors: dict[str, Any] = {name: file for file in opened for name in file.keys()}  # noqa: SIM118  # no dictionary

    def find(self, names: Iterable[str], shape: torch.Size) -> torch.Tensor:
        """The tensor by the first of these names that is there, with or without the base model's prefix."""
        names = list(names)
        for name in [n for k in names for n in (k, k.removeprefix(self.prefix), self.prefix + k)]:
            if name in self.tensors:
                value: torch.Tensor = self.tensors[name].get_tensor(name)
                if value.shape != shape:
                    raise ValueError(f"zero: {name} is {list(value.shape)} in the file, and {list(shape)} in the model")
                return value
        raise ValueError(f"zero: no file has a tensor {' or '.join(names)}")


def write_safetensors(path: Path, entries: list[tuple[str, torch.Size, torch.dtype]], parts: Iterable[torch.Tensor]) -> None:
    """One file of the tensors that `parts` yields one after another."""
    header, end = {}, 0
    for name, shape, dtype in entries:
        begin, end = end, end + shape.numel() * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (_, _, dtype), tensor in zip(entries, parts, strict=True):
            flat: Any = tensor.detach().to("cpu", dtype).contiguous().view(-1).view(torch.uint8).numpy()
            file.write(flat)


sources: WeakKeyDictionary[nn.Module, Safetensors] = WeakKeyDictionary()


def default_init(model: nn.Module) -> Init:
    """How the model initialises a module: transformers' _init_weights, else reset_parameters."""

    def reset(module: nn.Module) -> None:
        getattr(module, "reset_parameters", lambda: None)()

    init: Init | None = getattr(model, "_init_weights", None)
    return init or reset


@torch.no_grad()
def initialised(modules: list[nn.Module], init: Init, seed: int, name: str) -> dict[int, torch.Tensor]:
    """Values for the meta parameters of these modules, by the parameters' ids: the same on all ranks. The modules stay as
    they were, but for buffers on the meta device, which become real."""
    real: dict[int, nn.Parameter] = {}
    kept: list[tuple[nn.Module, str, nn.Parameter]] = []
    try:
        for module in modules:
            for key, p in module._parameters.items():
                if p is not None:
                    kept.append((module, key, p))
                    real.setdefault(id(p), nn.Parameter(torch.zeros(p.shape, dtype=torch.float32)))
                    module._parameters[key] = real[id(p)]
            for key, b in module._buffers.items():
                if b is not None and b.is_meta:
                    module._buffers[key] = torch.zeros(b.shape, dtype=b.dtype)
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(seed ^ zlib.crc32(name.encode()))
            for module in reversed(modules):  # children first, as Module.apply
                init(module)
    finally:
        for module, key, p in kept:
            module._parameters[key] = p
    return {number: p.detach() for number, p in real.items()}


class Values:
    """The first value of each parameter, flat and fp32: from a file, from the parameter itself, or from `init`."""

    def __init__(self, model: nn.Module, init: Init | None, seed: int) -> None:
        self.source, self.init, self.seed = sources.get(model), init or default_init(model), seed
        self.aliases: dict[int, list[str]] = {}
        for name, p in model.named_parameters(remove_duplicate=False):
            self.aliases.setdefault(id(p), []).append(name)
        self.cached: tuple[int, torch.Tensor] | None = None
        self.made: dict[int, torch.Tensor] = {}

    def flat(self, parameter: nn.Parameter, unit: str, modules: list[nn.Module]) -> torch.Tensor:
        if self.cached is None or self.cached[0] != id(parameter):
            self.cached = None
            value = self._value(parameter, unit, modules)
            self.cached = (id(parameter), value.detach().float().contiguous().view(-1))
        return self.cached[1]

    def _value(self, parameter: nn.Parameter, unit: str, modules: list[nn.Module]) -> torch.Tensor:
        if self.source:
            return self.source.find(self.aliases[id(parameter)], parameter.shape)
        if not parameter.is_meta:
            return parameter
        if id(parameter) not in self.made:  # one unit at a time is in memory
            self.made.clear()
            self.made = initialised(modules, self.init, self.seed, unit)
        return self.made[id(parameter)]
