"""What zero takes from PyTorch beside its documented names, and what stands in for that which a version or a build lacks.

The guard of a storage: an operation that touches its bytes raises a sentence, also through a view, or through what autograd has saved.
PyTorch 2.12 sets and clears it; older versions only set it, and builds without CUDA may do neither. Then zero sets the guard's two
flags in the storage. If PyTorch does not set the sentence either, the tensor's class adds it; through a view PyTorch says its own.
"""

import ctypes as C
from typing import Any

import torch
from torch import nn

__all__ = [
    "FakeTensorMode",
    "NamedMemberAccessor",
    "TorchDispatchMode",
    "current_graph_task",
    "dispatch_modes",
    "function_modes",
    "pop_hooks",
    "push_hooks",
    "pytree",
    "set_stance",
    "without_modes",
]
_torch: Any = torch  # functions without types
try:
    from torch._C import DisableTorchFunctionSubclass, _set_throw_on_mutable_data_ptr, _will_engine_execute_node
    from torch._C import _current_graph_task_id as current_graph_task  # -1: this thread is in no backward
    from torch._C._autograd import _pop_saved_tensors_default_hooks as pop_hooks
    from torch._C._autograd import _push_saved_tensors_default_hooks as push_hooks
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.autograd.graph import disable_saved_tensors_hooks, get_gradient_edge
    from torch.compiler import set_stance
    from torch.nn.utils._named_member_accessor import NamedMemberAccessor
    from torch.overrides import _get_current_function_mode_stack as function_modes
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._python_dispatch import _disable_current_modes as without_modes
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes

    is_checkpoint_valid = _torch.autograd._is_checkpoint_valid  # in a backward that gives parameters gradients
    queue_callback = _torch.autograd.Variable._execution_engine.queue_callback  # for the end of this backward
except (AttributeError, ImportError) as error:
    raise ImportError(f"zero needs PyTorch 2.6 or newer; this is {torch.__version__}, with another interface: {error}") from error

_top = getattr(_torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # from PyTorch 2.8 on
_set = getattr(torch._C, "_set_storage_data_ptr_access_error_msg", None)
_clear = getattr(torch._C, "_clear_storage_data_ptr_access_error_msg", None)
_REFUSED = "Cannot access data pointer of Storage"
_sentences: dict[int, str] = {}  # by storage, where PyTorch does not keep them


def gets_gradient(parameter: nn.Parameter) -> bool:
    """Whether the present backward adds to the parameter's .grad. PyTorch raises if torch.autograd.grad returns the gradient instead."""
    try:
        return _will_engine_execute_node(get_gradient_edge(parameter).node)
    except RuntimeError:
        return False


def outer_hooks() -> Any:
    """The pair of hooks on saved tensors that the program has; None: it has none; (): it has some, and PyTorch does not tell which."""
    if _top:
        return _top(False)
    try:
        with disable_saved_tensors_hooks(""):
            return None
    except RuntimeError:
        return ()


def storage_at(address: int, size: int, device: torch.device) -> Any:
    """Bytes that PyTorch does not own."""
    if device.type == "cpu":
        return torch.frombuffer((C.c_char * size).from_address(address), dtype=torch.uint8).untyped_storage()
    return _torch._C._construct_storage_from_data_pointer(address, device, size)


def _find_flags() -> list[int]:
    """Where a storage keeps that a check is needed, and that every access raises. Between these is the flag that writing raises, which
    each version can set."""
    probe = torch.zeros(1)
    storage = probe.untyped_storage()._cdata
    before = C.string_at(storage, 96)
    _set_throw_on_mutable_data_ptr(probe)
    changed = [i for i, (a, b) in enumerate(zip(before, C.string_at(storage, 96), strict=True)) if a != b]
    return [changed[0], changed[0] + 2] if len(changed) == 2 else []


def _flag(storage: int, value: bool) -> None:
    for offset in _flags:
        C.c_bool.from_address(storage + offset).value = value


def _raise_named(cls: Any, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
    try:
        with DisableTorchFunctionSubclass():
            return function(*arguments, **(options or {}))
    except RuntimeError as error:
        if _REFUSED not in str(error):
            raise
        tensors = [t for t in pytree.tree_leaves((arguments, options)) if isinstance(t, torch.Tensor)]
        said = [_sentences[s] for s in (t.untyped_storage()._cdata for t in tensors) if s in _sentences]
        raise RuntimeError(*said[:1] or error.args) from None


class _Named(torch.Tensor):
    __torch_function__ = classmethod(_raise_named)


class _NamedParameter(nn.Parameter):
    __torch_function__ = classmethod(_raise_named)

    def __deepcopy__(self, memo: Any) -> Any:
        with torch.no_grad():
            memo[id(self)] = nn.Parameter(self.clone(), self.requires_grad)
        return memo[id(self)]


def guard(storage: int, sentence: str, tensor: Any) -> None:
    """`tensor`: the one with this storage by which programs reach it."""
    if _set:
        _set(storage, sentence)
        return
    _flag(storage, True)
    _sentences[storage] = sentence
    if type(tensor) in _NAMED:
        tensor.__class__ = _NAMED[type(tensor)]


def unguard(storage: int, tensor: Any) -> None:
    if _clear:
        _clear(storage)
        return
    _flag(storage, False)
    _sentences.pop(storage, None)
    if type(tensor) is _NamedParameter:
        tensor.__class__ = nn.Parameter  # type: ignore[assignment]


_NAMED: Any = {torch.Tensor: _Named, nn.Parameter: _NamedParameter}
_flags = [] if _set and _clear else _find_flags()


def _guards() -> bool:
    """Whether a guarded tensor raises its sentence, and afterwards has its values."""
    probe = nn.Parameter(torch.ones(2))
    storage = probe.untyped_storage()._cdata
    guard(storage, "guarded", probe)
    try:
        return probe.sum().item() < 0
    except RuntimeError as error:
        unguard(storage, probe)
        return "guarded" in str(error) and probe.sum().item() == 2


if not _guards():
    raise ImportError(
        f"zero cannot guard parameters under PyTorch {torch.__version__}; it was tried with 2.6 to 2.15: install one of these"
    )
