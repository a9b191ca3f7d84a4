"""Where a rank computes, how it meets the others, and how it leaves them."""

import logging
import os
import secrets
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zero import _late
from zero._abi import ZeroError, lib

logger = logging.getLogger("zero")
_torch: Any = torch  # functions without types


def gpu_faults() -> list[str]:
    """What keeps a GPU that is there from being used, or from being used well."""
    faults = [f"CUDA has started without {', '.join(_late)}: import zero before anything uses the GPU"] if _late else []
    if not torch.cuda.is_available() and Path("/dev/nvidiactl").exists():
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except (AssertionError, RuntimeError) as error:
            faults.append(f"PyTorch {torch.__version__} cannot use the GPU: {str(error).splitlines()[0]}")
    return faults


def _in_group() -> bool:
    """Whether torch.distributed has ranks."""
    dist = torch.distributed
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def meeting_point() -> dict[str, Any]:
    """Where torch.distributed is there, its ranks are the engine's, and share a secret; else see zero_runtime in zero.h. Its broadcast
    over NCCL is on the current GPU."""
    dist = torch.distributed
    if not _in_group():
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
    """The fields of zero_runtime for the GPU on which the program computes, and for the stream. The GPU becomes the current one, also of
    NCCL's collectives. If GPU 0 is current, the program may not have chosen it: unless `device` says so, the rank takes the GPU of its
    number on the host."""
    place = device or parameter.device
    computes = place.type == "cuda" or (not device and parameter.is_meta and torch.cuda.is_available())
    dist = torch.distributed
    own = _in_group() and (computes or "nccl" in dist.get_backend())
    for fault in gpu_faults() if computes or parameter.is_meta else ():
        logger.warning("%s", fault)
    if not (computes or own or _torch.cuda.is_initialized()):  # the configuration may still choose a GPU
        return {"cuda_default_stream": 1}
    index = torch.cuda.current_device() if place.type != "cuda" or place.index is None else place.index
    if own and not index and not names_gpu(device):
        index = dist.get_node_local_rank(0) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    stream = torch.cuda.current_stream().cuda_stream
    number = {"local_rank": index} if index or names_gpu(device) else {}
    return {"cuda": 2 * computes, "cuda_stream": stream or None, "cuda_default_stream": int(not stream), **number}


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
