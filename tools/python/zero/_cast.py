"""Inputs of units in the type in which the units compute, as with FSDP2's mixed precision: what the model itself gets stays as it is."""

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

_torch: Any = torch  # functions without types


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """`value` itself, if nothing in it changes: the program may look for it."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if type(value) not in (dict, list, tuple):
        return value
    before = list(value.values()) if type(value) is dict else value
    after = [_cast(v, dtype) for v in before]
    if all(a is b for a, b in zip(after, before, strict=True)):
        return value
    return dict(zip(value, after, strict=True)) if type(value) is dict else type(value)(after)


def cast_inputs(model: nn.Module, units: Collection[nn.Module], held: Collection[nn.Parameter]) -> tuple[list[Any], Any]:
    """Hooks that do it, before units, and before modules with parameters that are used outside of units; of a model that is one unit,
    before what it calls. And that of a model without modules in it: not yet a hook, since its forward has begun. Inside of
    full_parameters(), parameters are fp32, and so are the inputs."""
    own = {module: [p for p in module._parameters.values() if p is not None and p.is_floating_point()] for module in model.modules()}
    modules = dict.fromkeys([*units, *(module for module in own if any(p in held for p in own[module]))])
    inner = [*model.children()]
    if model in modules and inner:
        del modules[model]
        inner = inner if model in units else []
        while len(inner) == 1 and not own[inner[0]]:  # a module around the model passes its inputs on
            inner = [*inner[0].children()]
        while inner:
            child = inner.pop()
            inner += child.children() if isinstance(child, (nn.ModuleList, nn.ModuleDict)) else []
            modules[child] = None

    def hook_of(parameter: nn.Parameter) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            dtype = parameter.dtype
            return None if dtype == torch.float32 else (_cast(args, dtype), _cast(kwargs, dtype))

        return _torch.compiler.disable(hook)

    first = {module: next((p for p in module.parameters() if p.is_floating_point()), None) for module in modules}
    functions = {module: hook_of(p) for module, p in first.items() if p is not None}
    own_function = functions.pop(model, None)
    return [module.register_forward_pre_hook(function, with_kwargs=True) for module, function in functions.items()], own_function
