"""What zero takes from PyTorch beside its documented names, and what stands in for that which a version or a build lacks.

The guard of a storage: an operation that touches its bytes raises a sentence, also through a view, or through what autograd has saved.
PyTorch 2.12 sets and clears it; older versions only set it, and builds without CUDA may do neither. Then zero sets the guard's
flags in the storage. So it does where reads are allowed, and only what may write raises. If PyTorch does not know the sentence, the
class of the tensor adds it, or that of a tensor that shares its memory.
"""

import ctypes as C
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["NamedMemberAccessor", "TorchDispatchMode", "current_graph_task", "pop_hooks", "push_hooks"]
__all__ += ["DisableTorchFunction", "pytree", "set_stance", "storage_uses", "without_modes"]
_torch: Any = torch  # functions without types
try:
    from torch._C import DisableTorchFunction, DisableTorchFunctionSubclass, _set_throw_on_mutable_data_ptr, _will_engine_execute_node
    from torch._C import _current_graph_task_id as current_graph_task  # -1: this thread is in no backward
    from torch._C._autograd import _pop_saved_tensors_default_hooks as pop_hooks
    from torch._C._autograd import _push_saved_tensors_default_hooks as push_hooks
    from torch._subclasses import fake_tensor
    from torch.autograd.graph import disable_saved_tensors_hooks, get_gradient_edge
    from torch.compiler import set_stance
    from torch.nn.utils._named_member_accessor import NamedMemberAccessor
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._python_dispatch import _disable_current_modes as without_modes

    is_checkpoint_valid = _torch.autograd._is_checkpoint_valid  # in a backward that gives parameters gradients
    queue_callback = _torch.autograd.Variable._execution_engine.queue_callback  # for the end of this backward
except (AttributeError, ImportError) as error:
    raise ImportError(f"zero needs PyTorch 2.6 or newer; this is {torch.__version__}, with another interface: {error}") from error


class FakeTensorMode(fake_tensor.FakeTensorMode):  # type: ignore[no-untyped-call]
    """PyTorch's own announces eight GPUs on a machine without one, for the rest of the process: the next backward starts a thread for
    each, and in a process that was forked they crash now and then ("terminate called after throwing an instance of 'c10::Error'")."""

    avoid_device_init = False

    def __init__(self, **options: Any) -> None:
        """An address of a tensor without data would be 0: a kernel that a program calls with it would end the GPU's context."""
        super().__init__(**options)
        self._allow_unsafe_data_ptr_access = False


storage_uses: Any = getattr(_torch._C, "_storage_Use_Count", None)
_top = getattr(_torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # from PyTorch 2.8 on
_set = getattr(torch._C, "_set_storage_data_ptr_access_error_msg", None)
_clear = getattr(torch._C, "_clear_storage_data_ptr_access_error_msg", None)
_REFUSED = "Cannot access data pointer of "
# By guarded storage, of those that PyTorch does not guard by itself: its sentence, what may lift the guard, and what holds the storage.
_guarded: dict[int, tuple[str, weakref.WeakMethod[Callable[[], None]] | None, Any]] = {}


def gets_gradient(parameter: nn.Parameter) -> bool:
    """Whether the present backward adds to the parameter's .grad. PyTorch raises if torch.autograd.grad returns the gradient instead."""
    try:
        return _will_engine_execute_node(get_gradient_edge(parameter).node)
    except RuntimeError:
        return False


def compiles_backward() -> bool:
    """Whether compiled autograd is on."""
    by_with, by_config = (sys.modules.get(f"torch._dynamo.{name}") for name in ("compiled_autograd", "config"))
    return bool(getattr(by_with, "compiled_autograd_enabled", False) or getattr(by_config, "compiled_autograd", False))


def replays_graphs(device: torch.device | None) -> bool:
    """Whether torch.compile has made CUDA graphs: the next forward's may write to the memory of their outputs, whoever holds these."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees") if device else None
    return bool(trees and trees.get_manager(device and device.index, False))


def outer_hooks() -> Any:
    """The pair of hooks on saved tensors that the program has; None: it has none; (): it has some, and PyTorch does not tell which."""
    if _top:
        return _top(False)
    try:
        with disable_saved_tensors_hooks(""):
            return None
    except RuntimeError:
        return ()


def reset_code() -> None:
    """Code that was compiled before does not call a module's later hooks, nor does that of another module of its class without hooks."""
    _torch.compiler.reset()
    _torch._dynamo.config.skip_nnmodule_hook_guards = False


def storage_at(address: int, size: int, device: torch.device) -> Any:
    """Bytes that PyTorch does not own."""
    if device.type == "cpu":
        return torch.frombuffer((C.c_char * size).from_address(address), dtype=torch.uint8).untyped_storage()
    return _torch._C._construct_storage_from_data_pointer(address, device, size)


def _find_flags() -> list[int]:
    """Where a storage keeps that a check is needed, that what may write raises, and that every access raises."""
    probe = torch.zeros(1)
    storage = probe.untyped_storage()._cdata
    before = C.string_at(storage, 96)
    _set_throw_on_mutable_data_ptr(probe)
    changed = [i for i, (a, b) in enumerate(zip(before, C.string_at(storage, 96), strict=True)) if a != b]
    return [*changed, changed[1] + 1] if len(changed) == 2 and changed[1] == changed[0] + 1 else []


def _flag(storage: int, writes: bool, all: bool) -> None:
    for offset, value in zip(_flags, (writes or all, writes, all), strict=False):
        C.c_bool.from_address(storage + offset).value = value


def _storage(t: Any) -> int:
    try:
        return int(t.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0


def _named(cls: Any, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
    """Calls it. What is refused waits for what may lift the guard, or raises its sentence. Copies are made of what the program takes out of
    PyTorch, where it might write unseen."""
    options = options or {}
    with DisableTorchFunctionSubclass():
        name = getattr(function, "__name__", "")
        tensors = [t for t in pytree.tree_leaves((arguments, options)) if isinstance(t, torch.Tensor)]
        several = name.startswith(("_foreach", "_fused"))  # the first ones may be done before another one raises
        for t in tensors if several else ():
            _wake(_storage(t))
        try:
            return _same_class(function(*arguments, **options))
        except RuntimeError as error:
            said = [storage for storage in map(_storage, tensors) if storage in _guarded]
            if not said or not (_REFUSED in str(error) or _guarded[said[0]][0] in str(error)):
                raise
            if not several and any(list(map(_wake, said))):
                return _named(cls, function, types, arguments, options)
            if name in ("numpy", "__array__", "__reduce_ex__") and _reads(said[0]):
                return function(arguments[0].detach().clone(), *arguments[1:], **options)
            raise RuntimeError(_guarded[said[0]][0]) from None


def _wake(storage: int) -> bool:
    """Whether the guard is another one now."""
    entry = _guarded.get(storage)
    wake = entry[1]() if entry and entry[1] else None
    if wake:
        wake()
    return _guarded.get(storage) != entry


def _reads(storage: int) -> bool:
    return bool(_flags) and not C.c_bool.from_address(storage + _flags[2]).value


def _same_class(t: Any) -> Any:
    """A tensor of the program in guarded memory."""
    if type(t) is torch.Tensor and _storage(t) in _guarded:
        t.__class__ = _Named
    return t


class _Named(torch.Tensor):
    __torch_function__ = classmethod(_named)

    def __deepcopy__(self, memo: Any) -> Any:
        memo[id(self)] = self.detach().clone()
        return memo[id(self)]


class _NamedParameter(nn.Parameter):
    __torch_function__ = classmethod(_named)

    def __deepcopy__(self, memo: Any) -> Any:
        with torch.no_grad():
            memo[id(self)] = nn.Parameter(self.clone(), self.requires_grad)
        return memo[id(self)]


def guard(memory: torch.Tensor, sentence: str, tensor: Any, reads: bool = False, wake: Callable[[], None] | None = None) -> None:
    """An operation on this memory raises the sentence. `tensor`: the one by which programs reach it. `reads`: are allowed. `wake`: is called
    before the sentence is raised, and may lift the guard."""
    storage = memory.untyped_storage()._cdata
    reads &= bool(_flags)
    if reads or not _set:
        _unset(storage)
        _flag(storage, reads, not reads)
    else:
        _flag(storage, False, False)
        _set(storage, sentence)
    if reads or wake or not _set:
        _guarded[storage] = sentence, weakref.WeakMethod(wake) if wake else None, memory
        if type(tensor) in _NAMED:
            tensor.__class__ = _NAMED[type(tensor)]
    else:
        _guarded.pop(storage, None)


def unguard(storage: int, tensor: Any) -> None:
    _flag(storage, False, False)
    _unset(storage)
    _guarded.pop(storage, None)
    plain_class(tensor)


def _unset(storage: int) -> None:
    if _clear:
        _clear(storage)


def plain_class(parameter: nn.Parameter) -> None:
    """Where it gets other data, which have no guard."""
    if type(parameter) is _NamedParameter:
        parameter.__class__ = nn.Parameter  # type: ignore[assignment]


def is_guarded(t: Any) -> bool:
    """Whether it is a tensor of the program in guarded memory, and no parameter."""
    return type(t) is _Named


_NAMED: Any = {torch.Tensor: _Named, nn.Parameter: _NamedParameter}
_flags = _find_flags()


def _guards() -> bool:
    """Whether a guarded tensor raises its sentence, and afterwards has its values."""
    probe = nn.Parameter(torch.ones(2))
    storage = probe.untyped_storage()._cdata
    guard(probe.detach(), "guarded", probe)
    try:
        return probe.sum().item() < 0
    except RuntimeError as error:
        unguard(storage, probe)
        return "guarded" in str(error) and probe.sum().item() == 2


if not _guards():
    raise ImportError(
        f"zero cannot guard parameters under PyTorch {torch.__version__}; it was tried with 2.6 to 2.15: install one of these"
    )
