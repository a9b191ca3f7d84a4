"""How much memory of the device the program's own tensors take in a step: what the plan leaves to PyTorch."""

import logging
import weakref
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from zero._cast import cast_inputs
from zero._private import TorchDispatchMode, pytree, set_stance, without_modes
from zero._units import fake_twin, interrupted_later, same_numbers

logger = logging.getLogger("zero")
_torch: Any = torch  # functions without types
_WORKSPACES = 64 << 20  # of cuBLAS and its like, which no operation makes


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that operations make, while they live."""

    def __init__(self, known: Any) -> None:
        """`known`: tensors that count nothing."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.seen = weakref.WeakSet[Any](t.untyped_storage() for t in known)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        pytree.tree_map_only(torch.Tensor, self._count, made)
        return made

    def _count(self, t: Any) -> None:
        storage = t.untyped_storage()
        if storage not in self.seen:
            self.seen.add(storage)
            size = storage.nbytes()
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._less, size)

    def _less(self, size: int) -> None:
        self.now -= size


def _loss(output: Any) -> torch.Tensor:
    """What a program's backward begins with: a loss in the output, or else one that it makes of the output in fp32."""
    found = [t for t in pytree.tree_leaves(output) if isinstance(t, torch.Tensor) and t.requires_grad]
    losses = [t for t in found if t.numel() == 1]
    return sum(losses, torch.zeros(())) if losses else sum((t.float().logsumexp(-1).sum() for t in found), torch.zeros(()))


def peak(
    model: nn.Module,
    args: Any,
    kwargs: Any,
    device: torch.device,
    units: Mapping[nn.Module, Collection[nn.Parameter]],
    held: Collection[nn.Parameter],
    dtype: torch.dtype,
    casts: bool,
) -> int:
    """Bytes, from a forward and a backward of copies, on tensors without data; with the gradients of the largest two units in a
    row, which autograd makes: the engine may still read those of the one before (zero_unit_reads_given). `dtype`: of the engine's parameters, and if it `casts`, of their modules' inputs."""
    own = {p for parameters in (*units.values(), held) for p in parameters}
    with interrupted_later(), without_modes(), same_numbers(), set_stance("force_eager"), torch.enable_grad():
        mode, fake, (copy, args, kwargs, stands_for) = fake_twin(model, args, kwargs, device, dict.fromkeys(own, dtype))
        for p in model.parameters():
            if p.requires_grad:
                fake[p].register_post_accumulate_grad_hook(lambda t: setattr(t, "grad", None))
        if casts:
            _, root = cast_inputs(copy, [m for m, of in stands_for.items() if of in units], {fake[p] for p in held})
            if root:
                copy.register_forward_pre_hook(root, with_kwargs=True)
        live = Live(fake.values())
        with mode, live, _torch.autograd.set_multithreading_enabled(False):
            _torch.autograd.backward(_loss(copy(*args, **(kwargs or {}))))
    sizes: list[int] = [sum(fake[p].nbytes for p in parameters if p.requires_grad) for parameters in units.values()]
    of_held: int = sum(fake[p].nbytes for p in held if p.requires_grad)
    return live.peak + max(a + b for a, b in pairwise([0, *sizes, 0])) + of_held


def with_margin(size: int) -> int:
    """What PyTorch's allocator may need for it."""
    return size + size // 8 + _WORKSPACES


class Compared:
    """The first step's peak of PyTorch's allocator beside what the plan has left for it."""

    def __init__(self, device: torch.device, planned: int) -> None:
        self.device, self.planned = device, planned
        torch.cuda.reset_peak_memory_stats(device)
        self.before = torch.cuda.memory_reserved(device)

    def tell(self) -> None:
        peak, gib = torch.cuda.max_memory_reserved(self.device) - self.before, 1 << 30
        if peak > self.planned or 2 * peak + _WORKSPACES < self.planned:
            logger.warning(
                "the plan has left %.2f GiB of %s to the program's own tensors, and the first step has taken %.2f GiB: give fully_shard "
                "activations=%d",
                self.planned / gib,
                self.device,
                peak / gib,
                peak + peak // 8,
            )
