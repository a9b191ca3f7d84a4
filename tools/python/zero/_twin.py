"""A copy of a model and of a call's arguments, for a forward of which the program sees nothing."""

import contextlib
import copy
import copyreg
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

Twin = tuple[nn.Module, Any, Any, dict[nn.Module, nn.Module]]  # model, arguments, and what each module of the model's copy stands for


class _Tensors(TorchFunctionMode):
    """copy.deepcopy makes tensors by a function, also those that it would refuse."""

    def __init__(self, made: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.made = made

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.clone:  # of a parameter that is not the model's
            return self.made(args[0])
        if func is not torch.Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            memo[id(tensor)] = self.made(tensor)
        return memo[id(tensor)]

    def __enter__(self) -> Any:
        copyreg.dispatch_table[torch.Generator] = _copy_generator
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        copyreg.dispatch_table.pop(torch.Generator, None)


def _copy_generator(generator: torch.Generator) -> Any:
    """Its own way takes its state from a tensor."""
    made = torch.Generator(generator.device)
    made.set_state(generator.get_state())
    return (lambda: made), ()


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


class _Functions:
    """Copies functions with the variables that they use: copy.deepcopy leaves functions as they are, and a hook often writes to a list of
    the program."""

    def __init__(self, memo: dict[int, Any]) -> None:
        self.memo = memo
        self.made: dict[FunctionType, FunctionType] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            return self.function(value)
        owner = type(value).__module__.partition(".")[0]
        if owner == "zero" or isinstance(value, (ModuleType, type)) or (isinstance(value, nn.Module) and id(value) not in self.memo):
            return value
        try:
            return copy.deepcopy(value, self.memo)
        except Exception:  # noqa: BLE001  # a lock, a file
            return value

    def function(self, f: FunctionType) -> FunctionType:
        if f in self.made or (f.__module__ or "").partition(".")[0] in ("torch", "zero"):
            return self.made.get(f, f)
        cells = tuple(CellType() for _ in f.__closure__ or ())
        variables = dict(f.__globals__)
        made = self.made[f] = FunctionType(f.__code__, variables, f.__name__, None, cells)
        made.__defaults__, made.__kwdefaults__ = self(f.__defaults__), self(f.__kwdefaults__)
        made.__dict__.update(f.__dict__)
        for name in {*_names(f.__code__)} & variables.keys():
            variables[name] = self(variables[name])
        for cell, before in zip(cells, f.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                cell.cell_contents = self(before.cell_contents)
        return made


def _share_what_has_no_copy(model: nn.Module, memo: dict[int, Any]) -> None:
    """Locks, generators, connections: the copies have those of the program."""
    modules = {id(module): module for module in model.modules()}
    for module in modules.values():
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                try:
                    copy.deepcopy(value, memo | modules)
                except Exception:  # noqa: BLE001
                    memo[id(value)] = value


def twin(
    model: nn.Module, args: Any, kwargs: Any, known: dict[torch.Tensor, torch.Tensor], made: Callable[[torch.Tensor], torch.Tensor]
) -> Twin:
    """`known`: the copies of some tensors; `made` makes those of others."""
    of_tensors: dict[int, Any] = {id(t): known[t] for t in known}
    with _Tensors(made):
        try:
            copies = copy.deepcopy((model, args, kwargs), memo := of_tensors.copy())
        except Exception:  # noqa: BLE001
            _share_what_has_no_copy(model, of_tensors)
            copies = copy.deepcopy((model, args, kwargs), memo := of_tensors.copy())
        stands_for = {memo.get(id(module), module): module for module in model.modules()}
        functions = _Functions(memo)
        for module in stands_for:
            for table in (vars(module), module._forward_pre_hooks, module._forward_hooks):
                table.update({key: functions(f) for key, f in table.items() if isinstance(f, FunctionType)})
    return *copies, stands_for
