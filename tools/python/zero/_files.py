"""Safetensors files: their tensors under the names that a model has, read one at a time, and written one after another."""

import copy
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

SINGLE = "model.safetensors"
INDEX = f"{SINGLE}.index.json"
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_KINDS = "float64 F64 float32 F32 float16 F16 bfloat16 BF16 int64 I64 int32 I32 int16 I16 int8 I8 uint8 U8 bool BOOL complex64 C64"
_KINDS += " uint16 U16 uint32 U32 uint64 U64 float8_e4m3fn F8_E4M3 float8_e5m2 F8_E5M2 float8_e8m0fnu F8_E8M0"
NAMES: dict[torch.dtype, str] = {  # types that the format has
    getattr(torch, kind): name for kind, name in zip(_KINDS.split()[::2], _KINDS.split()[1::2], strict=True) if hasattr(torch, kind)
}


def own_name(name: str) -> str:
    """Without what torch.compile puts into names."""
    return name.replace("_orig_mod.", "")


def plain(model: nn.Module) -> Any:
    """The module that torch.compile has wrapped."""
    return getattr(model, "_orig_mod", model)


# ---- names that differ between a model and its files ----


@dataclass(eq=False)
class Group:
    """Tensors that become one, or several, together: by transformers' own conversion, or as they are."""

    first: str  # a name of the result
    transform: Any = None
    renames: Sequence[Any] = ()  # of results
    sources: list[tuple[str, str]] = field(default_factory=list)  # a pattern of the transform, and a name

    def convert(self, model: Any, get: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
        if self.transform is None:
            return {_renamed(self.first, self.renames)[0]: get(self.sources[0][1])}
        once = copy.deepcopy(self.transform)
        for pattern, name in self.sources:
            once.add_tensor(self.first, name, pattern, get(name))
        made = once.convert(self.first, model=model, config=model.config)
        return {_renamed(name, self.renames)[0]: t[0] if isinstance(t, list) else t for name, t in made.items()}


def _transforms(model: Any, legacy: bool) -> tuple[list[Any], list[Any]]:
    """Those with which transformers reads this model's files: first some rename tensors, then one may convert them."""
    try:
        from transformers import PreTrainedModel
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter
    except ImportError:  # before transformers 5 files have the model's own names
        return [], []
    found = get_model_conversion_mapping(model, add_legacy=legacy) if isinstance(model, PreTrainedModel) else []
    return [t for t in found if not isinstance(t, WeightConverter)], [t for t in found if isinstance(t, WeightConverter)]


def _renamed(name: str, transforms: Iterable[Any], once: bool = False) -> tuple[str, str | None]:
    """The name that these give, and the pattern that it fits. `once`: the first that fits is the only one."""
    pattern = None
    for t in transforms:
        name, found = t.rename_source_key(name) if not (once and pattern) else (name, pattern)
        pattern = found or pattern
    return name, pattern


def _grouped(
    names: Iterable[str], result: Callable[[str], tuple[str, str | None]], converts: list[Any], renames: Sequence[Any] = ()
) -> list[Group]:
    """`result`: of a name, that of its group, and the pattern that it fits. Expert 10 comes after expert 9."""
    natural = lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
    by_pattern, groups = {pattern: t for t in converts for pattern in t.source_patterns}, dict[str, Group]()
    for name in sorted(names, key=natural):
        first, pattern = result(name)
        group = groups.setdefault(first, Group(first, by_pattern[pattern] if pattern else None, renames))
        group.sources.append((pattern or "", name))
    return list(groups.values())


def groups_to_read(model: nn.Module, names: Iterable[str]) -> list[Group]:
    """Of the names in files: those that the model has. A name may lack the base model's prefix, in the files or in the model."""
    state, prefix = set(map(own_name, model.state_dict(keep_vars=True))), f"{getattr(model, 'base_model_prefix', '')}."
    renames, converts = _transforms(model, True)

    def result(name: str) -> tuple[str, str | None]:
        tries = (_renamed(_renamed(name, renames)[0], converts, once=True), (name, None))
        found = ((m, fits) for n, fits in tries for m in (n, prefix + n, n.removeprefix(prefix)) if m in state)
        return next(found, (name, None))

    return [group for group in _grouped(names, result, converts) if group.first in state]


def groups_to_write(model: nn.Module, names: Iterable[str]) -> list[Group]:
    """Of the names of the model: for files with the names that transformers publishes."""
    renames, converts = ([t.reverse_transform() for t in reversed(kind)] for kind in _transforms(model, False))
    renames = [t for t in renames if type(t).__name__ != "PrefixChange"]  # such a prefix may be there in files, or not
    return _grouped(names, lambda name: _renamed(name, converts, once=True), converts, renames)


# ---- reading ----


class Files:
    """A directory's model.safetensors, or else the files of its index, for a model: one tensor at a time. Where both are there, the
    index is of an earlier save."""

    def __init__(self, directory: Path, model: nn.Module) -> None:
        from safetensors import safe_open

        single, index = directory / SINGLE, directory / INDEX
        if not single.exists() and not index.exists():
            raise ValueError(
                f"zero: {directory} has neither {SINGLE} nor {INDEX}: give what save_pretrained of a whole model has written"
            )
        names = {SINGLE} if single.exists() else set(json.loads(index.read_text())["weight_map"].values())
        files: list[Any] = [safe_open(directory / name, framework="pt") for name in sorted(names)]
        self.directory, self.model, self.kind = directory, model, type(model)
        self.places = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        self.groups: dict[str, Group] = {}  # by each name of the model
        self.shapes: dict[str, torch.Size] = {}
        for group in groups_to_read(model, self.places):
            for name, t in group.convert(model, self._empty).items():
                self.groups[name], self.shapes[name] = group, t.shape
        self.last: tuple[Group | None, dict[str, torch.Tensor]] = None, {}
        self.lazy: set[str] = set()  # names of parameters that take their values when they move to an engine
        self.taken: set[str] = set()  # those that have

    def __deepcopy__(self, memo: Any) -> "Files":
        return self

    def _empty(self, name: str) -> torch.Tensor:
        return torch.empty(self.places[name].get_slice(name).get_shape(), device="meta")

    def get(self, name: str) -> torch.Tensor:
        """The tensor for this name of the model."""
        group = self.groups[name]
        if self.last[0] is not group:
            self.last = None, {}
            self.last = group, group.convert(self.model, lambda n: self.places[n].get_tensor(n))
        return self.last[1][name]


# ---- writing ----


def write(file: IO[bytes], entries: dict[str, tuple[torch.Size, torch.dtype]], tensors: Iterable[torch.Tensor]) -> None:
    """One file of the tensors that `tensors` yields one after another."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (shape, dtype) in entries.items():
        begin, end = end, end + shape.numel() * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for (_, dtype), tensor in zip(entries.values(), tensors, strict=True):
        flat: Any = tensor.detach().to("cpu", dtype).resolve_conj().contiguous().view(-1).view(torch.uint8).numpy()
        file.write(flat)


def remove_older(directory: Path) -> None:
    """Of what an earlier save has written there: the index, and then the files that it names."""
    for path in [directory / INDEX, *filter(lambda p: _SHARD.fullmatch(p.name), directory.iterdir())]:
        path.unlink(missing_ok=True)


# ---- beside a checkpoint of the engine ----


def step_directory(directory: Path) -> Path:
    """That which the engine loads: engine/checkpoint/FORMAT.md."""
    if (directory / "manifest.json").exists():
        return directory
    latest = directory / "latest"
    return directory / latest.read_text().split()[0] if latest.exists() else next(directory.glob("step_*"))
