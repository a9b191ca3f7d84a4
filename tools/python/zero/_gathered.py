"""Chosen parameters, whole for a while, on engines or not."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType

import torch
import torch.distributed as dist
from torch import nn

from zero._abi import ZeroError, lib
from zero._leaf import Leaf
from zero._parts import agree, joined, of_rank, unique

if TYPE_CHECKING:
    from zero._state import State

# By id, the engine of a parameter. A strong reference to either would keep the engine: the model's hooks lead to it.
known: dict[int, ReferenceType[Any]] = {}


def find(parameters: Iterable[Any]) -> dict["State", list[Leaf]]:
    """By engine those that are on one, each once."""
    wanted: dict[State, set[int]] = {}
    for p in parameters:
        place = known.get(id(p))
        engine = place() if place else None
        if engine:
            wanted.setdefault(engine, set()).add(id(p))
    return {engine: [leaf for leaf in engine._passes.leaves if id(leaf.parameter) in ids] for engine, ids in wanted.items()}


@contextmanager
def gathered(parameters: nn.Module | torch.Tensor | Iterable[torch.Tensor], modify: int | None = None) -> Iterator[None]:
    """Inside, these parameters (or those of a module) are whole, in the type and on the device in which the model computes, for any use. They
    may be of several models; one that is on no engine yet stays as it is, or is joined. `modify`: a rank; what that rank changes lasts, on all ranks.
    None: below stage 3 a change is refused, at stage 3 it is dropped. Anywhere: between steps and micro-steps, between a forward and its
    backward (without `modify`), and inside of a forward if the forward uses them. Collective at stage 3, or with `modify`."""
    if isinstance(parameters, nn.Module):
        parameters = parameters.parameters()
    chosen = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    engines, parts = find(chosen), [p for p in chosen if hasattr(p, "ds_tensor")]
    with ExitStack() as stack:
        before = _before_an_engine(chosen, engines, modify) if modify is not None else []
        stack.enter_context(joined(parts, modify))
        for engine, leaves in engines.items():
            stack.enter_context(engine._gathered(leaves, modify))
        yield
        moved = find([*before, *parts])
        if modify and any(engine not in engines for engine in moved):
            raise ZeroError(
                f"zero: gathered: parameters have moved to an engine inside of it, with rank 0's values in place of those of rank {modify}: "
                "call engine.commit() before it"
            )
        on = {id(leaf.parameter) for leaves in moved.values() for leaf in leaves}
        left = [p for p in before if id(p) not in on]
        some = [p.is_meta for p in left]  # of rank 0 alone, perhaps: an engine takes rank 0's
        for p in agree(f"change of rank {modify} {some if modify else ''}", left, some):
            of_rank(p, modify or 0)


def _before_an_engine(chosen: Iterable[Any], engines: dict["State", list[Leaf]], modify: int) -> list[Any]:
    """Those whose changes go to all ranks here: an engine takes rank 0's values."""
    known = {id(leaf.parameter) for leaves in engines.values() for leaf in leaves}
    found = [p for p in unique(chosen) if id(p) not in known and not hasattr(p, "ds_tensor")]
    if modify == 0:  # others keep their values until the engine takes rank 0's: parameters that it leaves alone may differ by rank
        found = [p for p in found if hasattr(p, "ds_id")]
    if dist.is_available() and dist.is_initialized():
        return found
    for p in found:
        if modify and p.numel() and not p.is_meta:
            raise ZeroError(
                f"zero: gathered: a parameter of shape {list(p.shape)} is on no engine yet, which will take rank 0's values in place of those "
                f"of rank {modify}: call engine.commit() before it, or modify on rank 0"
            )
    return []


def lend(engine: "State", leaves: list[Leaf], away: list[Leaf], modify: int | None) -> Iterator[None]:
    """One engine's part. `away`: those that are not gathered yet."""
    passes, before = engine._passes, dict[Leaf, torch.Tensor]()
    try:
        if modify is not None:
            if passes.is_inside() or passes.waiting:
                raise ZeroError(
                    "zero: gathered: modify has its place between passes, and this is inside of one: gather after its backward"
                )
            engine._prepare_between()
        if passes.is_inside():
            for leaf in away:
                if not (leaf.shown or leaf.awake):
                    raise ZeroError(
                        f"zero: gathered: parameter {leaf.name} is not in use at this place of the forward or backward: gather it before the "
                        "forward, or give fully_shard units in which it is used"
                    )
        elif modify is None and not engine._shards:
            passes.wake()
        elif away and not passes.whole:
            for leaf, whole in passes.read_units(away).items():
                leaf.lend(whole)
            passes.whole = all(leaf.away for leaf in passes.leaves)
        if modify is not None:
            before = {leaf: leaf.parameter.detach().clone() for leaf in leaves}
        yield
        engine._puts = [put for leaf in before for put in _changed(engine, leaf, before[leaf], modify or 0)]
    finally:
        give_back(engine, away)
        passes.within.pop()


def _changed(engine: "State", leaf: Leaf, before: torch.Tensor, rank: int) -> Iterator[tuple[Leaf, torch.Tensor]]:
    """The weights after that rank's changes: those of other elements keep all their bits."""
    p = leaf.parameter.detach()
    if p.shape != before.shape:
        raise ZeroError(f"zero: gathered: parameter {leaf.name} is {list(p.shape)} now, and {list(before.shape)} on the engine")
    value = p.to("cpu", before.dtype).contiguous()
    lib.zero_engine_broadcast_from(engine._handle, rank, value.data_ptr(), value.nbytes)
    p.copy_(value)
    bits = torch.int32 if value.dtype == torch.float32 else torch.int16
    changed = value.view(bits) != before.cpu().view(bits)
    if changed.any():
        weights = engine._get(leaf)
        weights[changed] = value[changed].float()
        yield leaf, weights


def give_back(engine: "State", leaves: list[Leaf]) -> None:
    """Also once more, after an exception: all of what has changed is written, or nothing."""
    try:
        engine._put()
    finally:
        for leaf in leaves:
            if leaf.away:
                leaf.come_back()
                engine._passes.whole = False
