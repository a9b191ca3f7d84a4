"""Which parameters are gathered together, and in which order a forward uses them."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

logger = logging.getLogger("zero")
UnitSpec = Sequence[type[nn.Module] | nn.Module | str]


@dataclass(eq=False)
class Group:
    """A module whose parameters are a unit."""

    name: str
    module: nn.Module
    parameters: list[nn.Parameter]
    names: dict[str, nn.Parameter] = field(default_factory=dict)


@dataclass(eq=False)
class Layout:
    """`calls`: the groups in the order in which a forward calls them, once for each call. `held`: parameters that are
    used outside of the groups' forwards."""

    calls: list[Group]
    held: dict[str, nn.Parameter]


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict))


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The default units: of each list of modules, those of a class that occurs twice; the outermost ones."""
    found: list[nn.Module] = []

    def visit(module: nn.Module) -> None:
        children = [c for c in module.children() if next(c.parameters(), None) is not None]
        kinds = [type(c) for c in children]
        is_list = isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential))
        for child in children:
            if is_list and kinds.count(type(child)) > 1 and not _is_container(child):
                found.append(child)
            else:
                visit(child)

    visit(model)
    return found


def chosen_modules(model: nn.Module, units: UnitSpec | None) -> list[nn.Module]:
    """The modules that `units` means: of nested ones the outermost."""
    if units is None:
        return repeated_blocks(model)
    chosen: list[nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        means = any(
            module is u or (isinstance(u, type) and isinstance(module, u)) or (isinstance(u, str) and u in kinds) for u in units
        )
        if means and id(module) not in inside and next(module.parameters(), None) is not None:
            chosen.append(module)
            inside.update(id(m) for m in module.modules())
    if units and not chosen:
        raise ValueError(f"zero: no module of the model is one of units={list(units)}; give classes, names or modules")
    return chosen


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What one forward does: modules in, modules out, and parameters used."""

    def __init__(self, parameters: dict[int, nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parameters = parameters
        self.stack: list[nn.Module] = []
        self.calls: list[nn.Module] = []
        self.uses: dict[nn.Parameter, list[set[nn.Module]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in pytree.tree_leaves((args, kwargs)):
            if id(tensor) in self.parameters:
                self.uses.setdefault(self.parameters[id(tensor)], []).append(set(self.stack))
        return func(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        def enter(module: nn.Module, args: Any) -> None:
            self.stack.append(module)
            self.calls.append(module)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self.stack.pop()

        hooks = []
        for module in model.modules():
            hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
        try:
            with torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"), self:
                yield
        finally:
            for hook in hooks:
                hook.remove()


def trace(model: nn.Module, args: Any, kwargs: Any) -> Trace | None:
    """A forward of these arguments on tensors without data; where that fails, with data; None: neither works."""
    names = dict(model.named_parameters())
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = {k: torch.empty(p.shape, dtype=p.dtype, requires_grad=p.requires_grad) for k, p in names.items()}
        fake |= {k: torch.empty(b.shape, dtype=b.dtype) for k, b in model.named_buffers()}
        fake_args, fake_kwargs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
    record = Trace({id(fake[k]): p for k, p in names.items()})
    try:
        with mode, record.watching(model):
            torch.func.functional_call(model, fake, fake_args, fake_kwargs)
        return record
    except Exception as error:  # noqa: BLE001  # a forward that depends on its data, for example
        logger.info("a forward without data failed, so one with data finds the order of units: %s", error)
    if any(p.is_meta for p in names.values()):
        return None
    buffers = {k: b.clone() for k, b in model.named_buffers()}
    record = Trace({id(p): p for p in names.values()})
    with record.watching(model):
        model(*args, **kwargs)
    with torch.no_grad():
        for k, b in model.named_buffers():
            b.copy_(buffers[k])
    return record


def _partition(model: nn.Module, chosen: set[nn.Module], called: set[nn.Module] | None) -> tuple[list[Group], list[Group]]:
    """The chosen modules, and the largest called modules without chosen ones in them, each with all parameters in it; and
    modules around them, or that are not called, with their own parameters."""
    groups: list[Group] = []
    rest: list[Group] = []
    seen: set[nn.Module] = set()

    def visit(name: str, module: nn.Module) -> None:
        if module in seen:
            return
        seen.add(module)
        runs = module in called if called is not None else not _is_container(module)
        if module in chosen or (runs and chosen.isdisjoint(module.modules())):
            seen.update(module.modules())
            groups.append(Group(name, module, list(module.parameters())))
            return
        rest.append(Group(name, module, list(module.parameters(recurse=False))))
        for key, child in module.named_children():
            visit(f"{name}.{key}" if name else key, child)

    visit("", model)
    return groups, rest


def lay_out(model: nn.Module, units: UnitSpec | None, record: Trace | None) -> Layout:
    """Groups, their order, and what is held."""
    groups, rest = _partition(model, set(chosen_modules(model, units)), set(record.calls) if record else None)
    names = {p: name for name, p in model.named_parameters() if p.is_floating_point() and p.numel()}
    grouped = {p for g in groups for p in g.parameters}
    if record:  # what is used outside of all groups that have it
        owners: dict[nn.Parameter, set[nn.Module]] = {}
        for group in groups:
            for p in group.parameters:
                owners.setdefault(p, set()).add(group.module)
        loose = {p for p, stacks in record.uses.items() if not all(owners.get(p, set()) & stack for stack in stacks)}
        groups += [g for g in rest if not loose.issuperset(g.parameters)]  # used by no one
    else:
        loose = {p for g in rest for p in g.parameters} - grouped
    held = {name: p for p, name in names.items() if p in loose}
    for group in groups:
        group.names = {names[p]: p for p in group.parameters if p in names and p not in loose}
        if group in rest:
            group.names = {k: p for k, p in group.names.items() if p not in grouped}
    groups = [g for g in groups if g.names]
    if not groups:
        return Layout([Group("", model, [], held)], {})
    by_module = {g.module: g for g in groups}
    calls = [by_module[m] for m in record.calls if m in by_module] if record else list(groups)
    order = {m: i for i, m in enumerate(model.modules())}
    groups.sort(key=lambda g: order[g.module])
    before: Group | None = None
    for group in groups:  # one that this forward leaves out may be used by another: it goes where it was registered
        if group not in calls:
            calls.insert(calls.index(before) + 1 if before else 0, group)
        before = group
    return Layout(calls, held)
