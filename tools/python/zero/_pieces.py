"""An optimizer of the program's that no row of the engine computes: it runs on the elements that this rank stores."""

import io
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from zero import _header
from zero._abi import ZeroError, lib
from zero._leaf import Leaf, owned, read_owned

if TYPE_CHECKING:
    from zero._state import State

_ELEMENTS = {"ASGD", "Adadelta", "Adam", "AdamW", "Adagrad", "Adamax", "Lion", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}


class Pieces:
    """Each piece is a parameter, or the part of it that this rank stores, as a flat tensor in fp32 on the CPU. The engine's optimizer only
    keeps the gradient, clipped, in place of a moment."""

    def __init__(self, client: torch.optim.Optimizer) -> None:
        self.client, self.run = client, client.step  # before it is the engine's
        self.piece: dict[Leaf, tuple[int, nn.Parameter]] = {}  # the first element, and all

    @staticmethod
    def check(engine: Any) -> None:
        for key, allowed in (
            ("zero_optimization.offload_optimizer.device", ('"none"', '"cpu"')),
            ("zero_optimization.update_in_backward", ("false",)),
            ("bf16.bf16_optimizer_states", ("false",)),
        ):
            if (found := engine.setting(key) or allowed[0]) not in allowed:
                raise ZeroError(
                    f"zero: the optimizer is none of the engine's and runs on elements in memory, and {key} is {found}: leave that out, or give "
                    "AdamW, Adam, SGD, Adagrad or Muon of torch.optim"
                )
        if float(engine.setting("ema.decay") or 0):
            raise ZeroError("zero: the optimizer runs beside the engine, whose averages (ema.decay) do not see it: leave that out")

    def _open(self, engine: "State") -> None:
        names = {leaf.parameter: leaf for leaf in engine._passes.leaves if leaf.trains}
        cut = False
        for p in (p for group in self.client.param_groups for p in group["params"] if p in names):
            first, count = owned(names[p], _header.ZERO_PARAM)
            cut |= count != p.numel()
            if count:
                shape = p.shape if count == p.numel() else (count,)
                self.piece[names[p]] = first, nn.Parameter(torch.empty(shape, dtype=torch.float32, device="cpu"))
        if cut and type(self.client).__name__ not in _ELEMENTS:
            warnings.warn(
                f"zero: {type(self.client).__name__} runs on each rank's own elements, as flat tensors: its update of an element must not "
                "depend on other elements",
                stacklevel=6,
            )

    def update(self, engine: "State") -> None:
        """After the engine's step: the program's optimizer changes this rank's elements."""
        if not self.piece:
            self._open(engine)
        lib.zero_engine_flush(engine._handle)
        for leaf, (_, piece) in self.piece.items():
            piece.detach().copy_(read_owned(leaf, _header.ZERO_PARAM)[1].view_as(piece))
            grad = read_owned(leaf, _header.ZERO_STATE0)[1].view_as(piece)
            piece.grad = grad if leaf.parameter.requires_grad or leaf.came else None  # frozen since: it stays
        whole = [group["params"] for group in self.client.param_groups]
        mine = {leaf.parameter: piece for leaf, (_, piece) in self.piece.items()}
        try:
            for group in self.client.param_groups:
                group["params"] = [mine[p] for p in group["params"] if p in mine]
            self.run()
        finally:
            for group, params in zip(self.client.param_groups, whole, strict=True):
                group["params"] = params
        for leaf, (first, piece) in self.piece.items():
            piece.grad = None
            lib.zero_param_put_owned(leaf.handle, _header.ZERO_PARAM, piece.data_ptr(), first, piece.numel())
        lib.zero_engine_written(engine._handle)

    # ---- its state, beside a checkpoint ----

    def saved(self) -> bytes:
        """Of this rank, by name; a checksum first."""
        state = {
            leaf.name: {
                "first": first,
                "count": piece.numel(),
                "shape": list(piece.shape),
                "state": dict(self.client.state.get(piece, {})),
            }
            for leaf, (first, piece) in self.piece.items()
        }
        file = io.BytesIO()
        torch.save(state, file)
        return zlib.crc32(file.getvalue()).to_bytes(4, "little") + file.getvalue()

    def load(self, engine: "State", directory: Path) -> None:
        """Of all ranks that saved, what belongs to this rank's elements."""
        self.piece = {}
        self.client.state.clear()
        self._open(engine)
        saved: dict[str, list[dict[str, Any]]] = {}
        for path in sorted(directory.glob("program-*.bin")):
            data = path.read_bytes()
            if zlib.crc32(data[4:]).to_bytes(4, "little") != data[:4]:
                raise ZeroError(f"zero: {path} is damaged, which has the optimizer's state: load another checkpoint", "ZERO_E_IO")
            for name, part in torch.load(io.BytesIO(data[4:]), map_location="cpu", weights_only=True).items():
                saved.setdefault(name, []).append(part)
        for leaf, (first, piece) in self.piece.items():
            parts = sorted(saved.get(leaf.name, []), key=lambda part: int(part["first"]))
            end = first
            for part in parts:
                end = max(end, part["first"] + part["count"]) if part["first"] <= end else end
            if engine.steps and end < first + piece.numel():
                raise ZeroError(
                    f"zero: {directory} has no state of the optimizer for elements {end} to {first + piece.numel() - 1} of parameter "
                    f"{leaf.name}, as if a program-*.bin were missing: load another checkpoint",
                    "ZERO_E_IO",
                )
            for key, value in parts[0]["state"].items() if parts else ():
                by_element = (
                    isinstance(value, torch.Tensor) and list(value.shape) == parts[0]["shape"] and value.numel() == parts[0]["count"]
                )
                self.client.state[piece][key] = _cut(parts, key, first, piece) if by_element else value


def _cut(parts: list[dict[str, Any]], key: str, first: int, piece: torch.Tensor) -> torch.Tensor:
    """The elements of `piece` in the parts that several ranks have saved."""
    value = torch.empty(piece.numel(), dtype=parts[0]["state"][key].dtype)
    for part in parts:
        begin, end = max(first, part["first"]), min(first + piece.numel(), part["first"] + part["count"])
        if begin < end:
            value[begin - first : end - first] = part["state"][key].reshape(-1)[begin - part["first"] : end - part["first"]]
    return value.view(piece.shape)
