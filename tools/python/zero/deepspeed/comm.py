"""deepspeed.comm: torch.distributed by its own names, and how a program joins it."""

import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from zero._abi import ZeroError
from zero.deepspeed.accelerator import get_accelerator

# The names that launchers other than torchrun give to rank, size, number on the host, and tasks on the host. srun starts the processes of
# the mpirun of other launchers, too: it comes last.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
_SIZES = (*(names[1] for names in _LAUNCHERS), "MV2_COMM_WORLD_SIZE")
_TORCH = "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT"


def _place() -> dict[str, str]:
    """The variables that torch.distributed reads: those of mpirun or srun, or of a process by itself."""
    for names in _LAUNCHERS:
        rank, size, local, here = map(os.environ.get, names)
        if rank is None or size is None or local is None:
            continue
        if here != size and int(size) > 1 and "MASTER_ADDR" not in os.environ:
            raise ZeroError(f"zero: {names[1]} is {size}, and not all are on this host: set MASTER_ADDR to rank 0's host on all ranks")
        return {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local}
    size = next((name for name in _SIZES if int(os.environ.get(name, "1")) > 1), None)
    if size is not None or "PMIX_RANK" in os.environ:
        raise ZeroError(
            f"zero: {size or 'PMIX_RANK'} is set, and no launcher known here: start by zero-deepspeed or torchrun, or set {_TORCH}"
        )
    with socket.create_server(("127.0.0.1", 0)) as free:
        return {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_PORT": str(free.getsockname()[1])}


def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = 29500,
    verbose: bool = True,
    timeout: timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """torch.distributed's process group, unless it is there."""
    if dist.is_initialized() or dist_init_required is False:
        return
    if rank < 0 and init_method is None:
        for key, value in (_place() if "RANK" not in os.environ else {}).items():
            os.environ.setdefault(key, value)
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", str(distributed_port))
    accelerator = get_accelerator()
    if accelerator.device_name() == "cuda":
        accelerator.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(
        dist_backend or accelerator.communication_backend_name(),
        timeout=timeout,
        init_method=init_method,
        rank=rank,
        world_size=world_size,
    )


inference_all_reduce, get_all_ranks_from_group = dist.all_reduce, dist.get_process_group_ranks


def get_world_group() -> Any:
    return dist.group.WORLD


def log_summary(*_: Any, **__: Any) -> None:
    """And `configure`: of DeepSpeed's log of its collectives. The engine has `trace` in the configuration."""


configure = log_summary


def get_local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def __getattr__(name: str) -> Any:
    try:
        return getattr(torch.distributed, name)
    except AttributeError:
        raise AttributeError(f"zero: deepspeed.comm has the names of torch.distributed, and there is no {name!r}") from None
