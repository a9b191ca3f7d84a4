"""Inputs of units in the type in which the units compute, as with FSDP2's mixed precision: what the model itself gets stays as it is."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch import nn

_torch: Any = torch  # functions without types


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """`value` itself, if nothing in it changes: the program may look for it."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if type(value) is dict:
        made = {key: _cast(v, dtype) for key, v in value.items()}
        return made if any(made[key] is not v for key, v in value.items()) else value
    if type(value) in (list, tuple):
        items = [_cast(v, dtype) for v in value]
        return type(value)(items) if any(a is not b for a, b in zip(items, value, strict=True)) else value
    return value


def _inside(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _inside(child)
        else:
            yield child


def _modules(model: nn.Module, units: Collection[nn.Module], held: Collection[nn.Parameter]) -> Iterable[nn.Module]:
    """The units; of a model that is one unit, what it calls; and modules with parameters that are used outside of units."""
    has = lambda module: any(p is not None and p.is_floating_point() for p in module._parameters.values())
    found = [*units, *(module for module in model.modules() if any(p in held for p in module._parameters.values()))]
    if model in units and not has(model):
        found += _inside(model)
    return dict.fromkeys(module for module in found if module is not model or has(model))


def cast_inputs(model: nn.Module, units: Collection[nn.Module], held: Collection[nn.Parameter]) -> list[Any]:
    """Hooks that do it, while a unit's parameters are narrower than fp32: inside of full_parameters() they are not."""

    def hook_of(parameter: nn.Parameter) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            dtype = parameter.dtype
            return None if dtype == torch.float32 else (_cast(args, dtype), _cast(kwargs, dtype))

        return _torch.compiler.disable(hook)

    hooks = []
    for module in _modules(model, units, held):
        parameter = next((p for p in module.parameters() if p.is_floating_point()), None)
        if parameter is not None:
            hooks.append(module.register_forward_pre_hook(hook_of(parameter), with_kwargs=True))
    return hooks
