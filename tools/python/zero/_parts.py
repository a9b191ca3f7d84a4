"""Parameters that no rank holds before an engine has them.

WHOLE --cut--> each rank has its part in `ds_tensor`, and no data --joined--> WHOLE, and cut again afterwards
                                                  `--an engine's attach--> the engine's memory (_leaf.py), without `ds_tensor`

The names are DeepSpeed's: programs read them. All of it is collective over torch.distributed, and begins with a check that the ranks have
the same state. A parameter whose memory anything else holds, on any rank, stays whole: what is written there is not lost."""

import ctypes as C
import sys
import weakref
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zero._abi import ZeroError
from zero._private import DisableTorchFunction, storage_uses

ids = count()  # ds_id: of this rank
_numbers = count()  # the same on all ranks
SHARE = (
    "zero: parameters share memory, and are two tensors, so that on the engine they would be two values: tie them (the same parameter), or "
    "give one a memory of its own (clone)"
)


def is_cut(t: Any) -> bool:
    with DisableTorchFunction():  # Init answers with the shape of the whole
        return hasattr(t, "ds_tensor") and not t.numel()


def shape(t: Any) -> torch.Size:
    """Of the whole."""
    found: torch.Size = t.ds_shape if is_cut(t) else t.shape
    return found


def unique(parameters: Iterable[Any]) -> list[Any]:
    return list({id(p): p for p in parameters}.values())


def _sent(t: torch.Tensor) -> torch.Tensor:
    """Flat, on the device of the ranks' collectives."""
    flat = t.detach().reshape(-1)
    return flat.cuda() if dist.get_backend() == "nccl" else flat.cpu()


def of_rank(t: torch.Tensor, rank: int) -> torch.Tensor:
    """It gets that rank's values. They are returned flat."""
    flat = _sent(t)
    dist.broadcast(flat.view(torch.uint8), src=rank)
    if flat.data_ptr() != t.data_ptr():  # else a trace of the forward would see a change
        t.data.copy_(flat.view(t.shape))
    return flat


def _most(values: list[int]) -> list[int]:
    """Of each value over the ranks."""
    row = _sent(torch.tensor(values, device="cpu"))
    dist.all_reduce(row, dist.ReduceOp.MAX)
    found: list[int] = row.tolist()
    return found


def agree(what: str, parameters: list[Any], left: Iterable[bool] = ()) -> list[Any]:
    """Raises where the ranks call for other things, or have the parameters in other states. Those that no rank wants to be left out."""
    if not parameters:
        return []
    with DisableTorchFunction():
        written = [p for p in parameters if is_cut(p) and p._version != p.ds_version]
        states = ((tuple(shape(p)), p.dtype, is_cut(p), getattr(p, "ds_number", None)) for p in parameters)
        state = zlib.crc32(repr([what, *states]).encode())
        most, least, lost = _most([state, -state, bool(written) and dist.get_rank() == 0])  # others' values do not count
        if (most, least) != (state, -state):
            raise ZeroError(
                f"zero: the ranks differ in a collective call ({what.split()[0]}) for {len(parameters)} parameters, the first of shape "
                f"{list(shape(parameters[0]))} and {parameters[0].dtype} here: make, gather and change parameters in the same order on all "
                "ranks, with the same shape and dtype"
            )
        if lost:
            raise ZeroError(
                "zero: a parameter was written while each rank had a part of it, so that what was written is lost: write inside of "
                "GatheredParameters(…, modifier_rank=0), or before zero.Init ends"
            )
        flags = [*map(int, left)]
        return [p for p, out in zip(parameters, _most(flags) if flags else [0] * len(parameters), strict=True) if not out]


def shared(p: torch.Tensor) -> bool:
    """Anything else holds its memory, or nobody knows."""
    return storage_uses is None or _holders(p) > _holders(nn.Parameter(torch.empty(1, device="cpu")))


def _holders(p: torch.Tensor) -> tuple[int, int]:
    storage = p.untyped_storage()
    return storage_uses(storage._cdata), sys.getrefcount(storage)


class _Copies:
    """A copy of a parameter that is cut has its parts. A file would have those of one rank."""

    def __init__(self, p: Any) -> None:
        self.of = weakref.ref(p)

    def __call__(self, memo: dict[int, Any]) -> Any:
        p: Any = self.of()
        with DisableTorchFunction():
            new = nn.Parameter.__deepcopy__(p, memo)  # type: ignore[no-untyped-call]
            copy_marks(p, new)
            new.ds_id, new.ds_active_sub_modules, new.ds_status = next(ids), set(), type(p.ds_status).NOT_AVAILABLE
            if is_cut(p):
                new.ds_tensor, new.ds_version = p.ds_tensor.clone(), new._version
            copied(new)
        return new

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        p = self.of()
        if is_cut(p):
            raise ZeroError(
                f"zero: a parameter of shape {list(shape(p))} is saved while each rank has a part of it: save it inside of GatheredParameters"
            )
        return type(None), ()


def copy_marks(p: Any, whole: Any) -> None:
    """For another parameter of its shape, which has its values: programs gather none that is available."""
    whole.__dict__.update((key, value) for key, value in p.__dict__.items() if key.startswith("ds_") and key != "ds_tensor")
    if hasattr(p, "ds_status"):
        whole.ds_status = type(p.ds_status).AVAILABLE


def copied(p: Any) -> None:
    """From here on copy.deepcopy and pickle know of parts."""
    p.__deepcopy__ = _Copies(p)


def cut(parameters: Iterable[Any]) -> None:
    """Each rank keeps its part of rank 0's values."""
    found = [p for p in unique(parameters) if not is_cut(p)]
    with DisableTorchFunction():
        for p in found:
            p.ds_status = type(p.ds_status).NOT_AVAILABLE
        stay = [type(p) is not nn.Parameter or p.is_meta or not p.numel() or not p.is_floating_point() or shared(p) for p in found]
    left = agree("cut", found, stay)
    for p in found:
        _number(p)
    for p in left:
        _store(p, of_rank(p, 0))
        empty(p)


def _number(p: Any) -> None:
    if not hasattr(p, "ds_number"):
        p.ds_number = next(_numbers)


def part(flat: torch.Tensor) -> torch.Tensor:
    """This rank's, filled up to the same size."""
    size = -(-len(flat) // dist.get_world_size())
    own = flat[dist.get_rank() * size :][:size]
    return nn.functional.pad(own, (0, size - len(own)))


def _store(p: Any, flat: torch.Tensor) -> None:
    """Each rank keeps its part of these values. All have the whole, too."""
    with DisableTorchFunction():
        own, old = part(flat), getattr(p, "ds_tensor", None)
        if old is None or (len(old), old.dtype, old.device) != (len(own), p.dtype, p.device):
            p.ds_tensor = p.data.new_empty(len(own))  # else its memory stays where it is: the next whole one fits between
        p.ds_tensor.copy_(own)
        p.ds_shape, p.ds_numel = p.shape, p.numel()
        copied(p)


def empty(p: Any) -> None:
    """It is cut: it has its part, and no data."""
    with DisableTorchFunction():
        size = p.data.nbytes
        p.data, p.ds_status = p.data.new_empty(0), type(p.ds_status).NOT_AVAILABLE
        p.ds_version = p._version
    if size > 1 << 16:
        C.CDLL(None).malloc_trim(0)  # the next one does not fit in its place


def keep_part(p: Any, own: torch.Tensor) -> None:
    """It is cut, with this part of an engine's values."""
    with DisableTorchFunction():
        p.ds_shape, p.ds_numel = p.shape, p.numel()
        p.ds_tensor, p.data = own, own.new_empty(0)
        _number(p)
        copied(p)
    empty(p)


def whole(p: Any) -> torch.Tensor:
    """The values of a parameter that is cut, in the type and on the device that it has now."""
    with DisableTorchFunction():
        size, ranks = len(p.ds_tensor), dist.get_world_size()
        if not size:
            raise ZeroError(
                f"zero: an exception came while a parameter of shape {list(p.ds_shape)} moved to an engine, and its values are lost: "
                "make the model and its engine again"
            )
        flat = p.ds_tensor.new_empty(ranks * size)
        flat[dist.get_rank() * size :][:size] = p.ds_tensor
        for rank, piece in enumerate(flat.chunk(ranks)):  # an all-gather of gloo takes the size of the whole once more
            of_rank(piece, rank)
        values: torch.Tensor = flat[: p.ds_shape.numel()].view(p.ds_shape).to(p.device, p.dtype)
        return values


def join(parameters: list[Any]) -> None:
    for p in agree("gather", parameters):
        with DisableTorchFunction():
            p.data, p.ds_status = whole(p), type(p.ds_status).AVAILABLE


@contextmanager
def joined(parameters: Iterable[Any], modify: int | None = None) -> Iterator[None]:
    """Inside, those that are cut are whole. What rank `modify` has changed lasts, also of those which are whole already, around it."""
    kept = unique(p for p in parameters if hasattr(p, "ds_tensor"))
    own = [p for p in kept if is_cut(p)]
    try:
        join(own)
        yield
        left = [p for p in kept if modify is not None and hasattr(p, "ds_tensor")]  # on no engine since
        places = len({p.data_ptr() for p in left})
        agree(f"change of rank {modify}, {places}", left)
        if places != len(left):
            raise ValueError(SHARE)
        for p in left:
            _store(p, of_rank(p, modify or 0))
    finally:
        for p in own:
            if hasattr(p, "ds_tensor"):
                empty(p)
