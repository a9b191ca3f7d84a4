"""Parameters that no rank holds before an engine has them.

WHOLE --cut--> each rank has its part in `ds_tensor`, and no data --joined--> WHOLE, and cut again afterwards
                                                  `--an engine's attach--> the engine's memory (_leaf.py), without `ds_tensor`

The names are DeepSpeed's: programs read them. All of it is collective over torch.distributed."""

import ctypes as C
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zero._abi import ZeroError


def is_cut(t: Any) -> bool:
    return hasattr(t, "ds_tensor") and not t.numel()


def shape(t: Any) -> torch.Size:
    """Of the whole."""
    found: torch.Size = t.ds_shape if is_cut(t) else t.shape
    return found


def _sent(t: torch.Tensor) -> torch.Tensor:
    """Flat, on the device of the ranks' collectives."""
    flat = t.detach().reshape(-1)
    return flat.cuda() if dist.get_backend() == "nccl" else flat.cpu()


def of_rank(p: torch.Tensor, rank: int) -> torch.Tensor:
    """That rank's values, flat."""
    flat = _sent(p)
    dist.broadcast(flat.view(torch.uint8), src=rank)
    return flat


def cut(p: Any, rank: int = 0) -> None:
    """Each rank keeps its part of that rank's values, filled up to the same size."""
    fits = type(p) is nn.Parameter and p.numel() and not p.is_meta and p.is_floating_point()
    if not fits:
        return
    flat, ranks = of_rank(p, rank), dist.get_world_size()
    size = -(-len(flat) // ranks)
    own = flat[dist.get_rank() * size :][:size]
    if len(getattr(p, "ds_tensor", ())) != size:  # else its memory stays where it is: the next whole one fits between
        p.ds_tensor = p.data.new_zeros(size)
    p.ds_tensor[: len(own)] = own
    p.ds_shape = p.shape
    p.data = p.data.new_empty(0)
    if own.nbytes > 1 << 16:
        del flat, own
        C.CDLL(None).malloc_trim(0)  # the next one does not fit in its place


def whole(p: Any) -> torch.Tensor:
    """The values of a parameter that is cut, in the type and on the device that it has now."""
    part, ranks = _sent(p.ds_tensor), dist.get_world_size()
    if not len(part):
        raise ZeroError(
            f"zero: an exception came while a parameter of shape {list(p.ds_shape)} moved to an engine: call engine.commit() again"
        )
    flat = part.new_empty(ranks * len(part))
    flat[dist.get_rank() * len(part) :][: len(part)] = part
    for rank, piece in enumerate(flat.view(torch.uint8).chunk(ranks)):  # an all-gather of gloo takes the size of the whole once more
        dist.broadcast(piece, src=rank)
    return flat[: p.ds_shape.numel()].view(p.ds_shape).to(p.device, p.dtype)


@contextmanager
def joined(parameters: Iterable[Any], modify: int | None = None) -> Iterator[None]:
    """Inside, those that are cut are whole. What rank `modify` has changed lasts."""
    own = [p for p in parameters if is_cut(p)]
    try:
        for p in own:
            p.data = whole(p)
        yield
        for p in own:
            if modify is not None and hasattr(p, "ds_tensor"):  # it is on no engine since
                cut(p, modify)
    finally:
        for p in own:
            if hasattr(p, "ds_tensor"):
                p.data = p.data.new_empty(0)
