"""Where a rank computes, how it meets the others, and how it leaves them."""

import os
import secrets
import socket
import sys
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from zero._abi import ZeroError, lib

_torch: Any = torch  # functions without types


def meeting_point() -> dict[str, Any]:
    """Where torch.distributed is there, its ranks are the engine's, and share a secret; else see zero_runtime in zero.h. Its broadcast
    over NCCL is on the current GPU."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return {}
    place: list[Any] = [None]
    if dist.get_rank() == 0:
        with socket.create_server(("", 0)) as free:
            host = os.environ.get("MASTER_ADDR") or socket.gethostname()
            place = [{"address": host.encode(), "port": free.getsockname()[1], "secret": secrets.token_hex().encode()}]
    dist.broadcast_object_list(place, src=0)
    return {"rank": dist.get_rank(), "size": dist.get_world_size(), "local_rank": dist.get_node_local_rank(0), **place[0]}


def names_gpu(device: torch.device | None) -> bool:
    return device is not None and device.type == "cuda" and device.index is not None


def gpu(parameter: nn.Parameter, device: torch.device | None) -> dict[str, Any]:
    """The fields of zero_runtime for the GPU on which the program computes, and for the stream. The GPU becomes the current one. If
    GPU 0 is current, the program may not have chosen it: unless `device` says so, the rank takes the GPU of its number on the host."""
    place = device or parameter.device
    computes = place.type == "cuda" or (not device and parameter.is_meta and torch.cuda.is_available())
    if not computes and not _torch.cuda.is_initialized():  # the configuration may still choose a GPU
        return {"cuda_default_stream": 1}
    index = torch.cuda.current_device() if place.type != "cuda" or place.index is None else place.index
    torch.cuda.set_device(index)
    stream = torch.cuda.current_stream().cuda_stream
    number = {"local_rank": index} if index or names_gpu(device) else {}
    return {"cuda": int(computes), "cuda_stream": stream or None, "cuda_default_stream": int(not stream), **number}


def fails() -> bool:
    """True while an exception is handled, or after one has ended the program: the other ranks may then never make the same call."""
    return sys.exc_info()[0] is not None or getattr(sys, "last_type", None) is not None


def _exception() -> str:
    """The exception that fails means; "": the program has ended itself."""
    value: Any = sys.exc_info()[1] or getattr(sys, "last_value", None) or getattr(sys, "last_type")()  # noqa: B009
    return "" if isinstance(value, SystemExit | GeneratorExit) else f"{type(value).__name__}: {value}".removesuffix(": ")


def end(handle: int, process: int) -> None:
    """Ends an engine, once a save in the background is complete. If that save fails, the log says so. After an exception it ends at once,
    and the other ranks receive that exception. A forked child has neither the engine's threads nor its connections, and leaves it alone."""
    if os.getpid() != process:
        return
    try:
        with suppress(ZeroError):
            if not fails():
                lib.zero_engine_save_wait(handle)
            elif why := _exception():
                lib.zero_engine_fail(handle, why)
    finally:
        lib.zero_engine_destroy(handle)
