"""Which parameters are gathered together, and in which order a forward uses them."""

import contextlib
import logging
import random
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from zero._parts import copy_marks, is_cut, shape
from zero._private import FakeTensorMode, TorchDispatchMode, outer_hooks, pytree, set_stance, without_modes
from zero._twin import Twin, twin

logger = logging.getLogger("zero")
_torch: Any = torch  # functions without types
UnitSpec = Sequence[type[nn.Module] | nn.Module | str]


@dataclass(eq=False)
class Group:
    """A module whose parameters are a unit. `whole`: with all that is in it; else its own parameters alone."""

    name: str
    module: nn.Module
    parameters: dict[str, nn.Parameter]
    whole: bool = True


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict))


def chosen_modules(model: nn.Module, units: UnitSpec | None) -> set[nn.Module]:
    """The modules that `units` means; by default, of each list of modules those of a class that occurs twice. Of nested ones
    the outermost."""
    found: list[nn.Module] = []

    def is_chosen(module: nn.Module, siblings: list[type] | None) -> bool:
        if units is None:
            return siblings is not None and siblings.count(type(module)) > 1 and not _is_container(module)
        kinds = {kind.__name__ for kind in type(module).__mro__}
        return any(module is u or (isinstance(u, type) and isinstance(module, u)) or (isinstance(u, str) and u in kinds) for u in units)

    def visit(module: nn.Module, siblings: list[type] | None = None) -> None:
        if next(module.parameters(), None) is None:
            return
        if is_chosen(module, siblings):
            found.append(module)
            return
        is_list = isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential))
        kinds = [type(child) for child in module.children()] if is_list else None
        for child in module.children():
            visit(child, kinds)

    visit(model)
    if units and not found:
        raise ValueError(f"zero: no module of the model is one of units={list(units)}; give classes, names or modules")
    return set(found)


@contextlib.contextmanager
def same_numbers() -> Iterator[None]:
    """Generators of random numbers, also NumPy's if the program has it, have the same state afterwards as before."""
    numpy, state = sys.modules.get("numpy"), random.getstate()
    of_numpy = numpy.random.get_state() if numpy else None
    gpus = range(torch.cuda.device_count()) if _torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(of_numpy)


def _storage(tensor: Any) -> int:
    """Which memory a tensor has; 0: none of its own."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (AttributeError, NotImplementedError, RuntimeError):
        return 0


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records one forward: the modules that it calls, for each use of a parameter the modules around it, and the parameters that the
    forward changes."""

    def __init__(self, parameters: dict[nn.Parameter, torch.Tensor]) -> None:
        """`parameters`: with each, the tensor that stands for it in this forward."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.parameters = {id(t): p for p, t in parameters.items()}
        self.storages = {_storage(t): p for p, t in parameters.items()}
        self.changed: dict[nn.Parameter, str] = {}  # by which operation
        self.stack: list[nn.Module] = []
        self.calls: list[nn.Module] = []
        self.uses: dict[nn.Parameter, list[set[nn.Module]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in pytree.tree_leaves((args, kwargs)):
            if id(tensor) in self.parameters:
                self.uses.setdefault(self.parameters[id(tensor)], []).append(set(self.stack))
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info and argument.alias_info.is_write:
                written = args[i] if i < len(args) else (kwargs or {}).get(argument.name)
                changed = (self.storages.get(_storage(t)) for t in pytree.tree_leaves(written))
                self.changed |= {p: str(func) for p in changed if p is not None}
        return func(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        def enter(module: nn.Module, args: Any) -> None:
            if module not in self.stack:  # a call inside of one of the same module is a part of that
                self.calls.append(module)
            self.stack.append(module)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self.stack.pop()

        with contextlib.ExitStack() as hooks:
            hooks.callback(register_module_forward_pre_hook(enter).remove)
            hooks.callback(register_module_forward_hook(leave).remove)
            if outer_hooks() is not None:  # those of a checkpoint around the model count what they are given
                hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, lambda t: t))
            with same_numbers(), set_stance("force_eager"), self:
                yield

    def run(self, copy: Twin) -> None:
        model, args, kwargs, stands_for = copy
        with self.watching():
            model(*args, **kwargs)
        self.calls = [stands_for[m] for m in self.calls if m in stands_for]
        self.uses = {p: [{stands_for[m] for m in stack if m in stands_for} for stack in stacks] for p, stacks in self.uses.items()}


def fake_twin(model: nn.Module, args: Any, kwargs: Any, device: torch.device, types: dict[Any, torch.dtype]) -> tuple[Any, Any, Twin]:
    """A mode of tensors without data; by parameter or buffer, that which stands for it, of one of these `types` or its own; and the copies."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        tensors = (*model.parameters(), *model.buffers())
        fake: Any = {t: torch.empty(shape(t), dtype=types.get(t, t.dtype), device=device) for t in tensors}
        fake |= {p: nn.Parameter(fake[p], requires_grad=p.requires_grad) for p in model.parameters()}
    for p in model.parameters():
        copy_marks(p, fake[p])
    return mode, fake, twin(model, args, kwargs, fake, mode.from_tensor)


def _without_data(model: nn.Module, args: Any, kwargs: Any, device: torch.device) -> Trace:
    mode, fake, copy = fake_twin(model, args, kwargs, device, {})
    record = Trace({p: fake[p] for p in model.parameters()})
    with mode:
        record.run(copy)
    return record


@contextlib.contextmanager
def interrupted_later() -> Iterator[None]:
    """Ctrl-C inside comes after it: an exception in the middle of an operation under a mode ends the process, as PyTorch is."""
    came: list[Any] = []
    handler: Any = signal.getsignal(signal.SIGINT)
    defers = callable(handler) and threading.current_thread() is threading.main_thread()
    if defers:
        signal.signal(signal.SIGINT, lambda *arguments: came.append(arguments))
    try:
        yield
    finally:
        if defers:
            signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


def trace(model: nn.Module, args: Any, kwargs: Any, device: torch.device) -> Trace | None:
    """A forward of copies of the model and of these arguments, on tensors without data, on the engine's device; where that fails, with
    data, where the parameters are now; None: neither works."""
    with interrupted_later(), without_modes():  # one of the program counts operations, perhaps
        return _trace(model, args, kwargs, device)


def _trace(model: nn.Module, args: Any, kwargs: Any, device: torch.device) -> Trace | None:
    try:
        return _without_data(model, args, kwargs, device)
    except Exception as error:  # noqa: BLE001  # a forward that depends on its data, for example
        if any(map(is_cut, model.parameters())):
            return None  # the engine joins them, and comes again
        logger.warning(
            "a forward without data failed (%s), so copies of the model and of this batch run one with data, to find the order of units",
            error,
        )
    why: object = "the parameters are on the meta device"
    places = {p.device for p in model.parameters()}
    if torch.device("meta") not in places:
        place = device if device in places else next(iter(places))
        known: Any = {p: p for p in model.parameters()}
        record = Trace(known)
        try:
            copy = twin(model, args, kwargs, known, lambda t: t.to(place).detach().clone().requires_grad_(t.requires_grad))
        except Exception as error:  # noqa: BLE001
            copy, why = None, error
        try:
            if copy:
                record.run(copy)
                return record
        except Exception as error:
            if device in places:
                raise
            why = error
    logger.warning("the order of units is the order in which the model has them, since no forward with data is possible: %s", why)
    return None


def _partition(model: nn.Module, chosen: set[nn.Module], called: set[nn.Module]) -> list[Group]:
    """The chosen modules and the largest called modules without chosen ones in them, whole; and the modules around them, or
    that are not called."""
    groups: list[Group] = []
    seen: set[nn.Module] = set()

    def visit(name: str, module: nn.Module) -> None:
        if module in seen:
            return
        whole = module in chosen or (module in called and chosen.isdisjoint(module.modules()))
        groups.append(Group(name, module, dict(module.named_parameters(name, recurse=whole)), whole))
        seen.update(module.modules() if whole else [module])
        for key, child in module.named_children():
            visit(f"{name}.{key}" if name else key, child)

    visit("", model)
    return groups


def lay_out(
    model: nn.Module, units: UnitSpec | None, record: Trace | None, ignored: set[nn.Parameter]
) -> tuple[list[Group], dict[str, nn.Parameter]]:
    """The groups of parameters that are not ignored, in the order in which a forward calls them, once for each call; and parameters that are used outside of the
    groups which have them whole: they are held."""
    order = record.calls if record else [m for m in model.modules() if not _is_container(m)]
    groups = _partition(model, chosen_modules(model, units), set(order))
    names = {p: name for name, p in model.named_parameters() if p.is_floating_point() and shape(p).numel() and p not in ignored}
    for name, p in model.named_parameters():
        if p in ignored:
            continue
        kind = str(p.dtype).removeprefix("torch.")
        if p.dtype == torch.float64:
            raise ValueError(f"zero: parameter {name} is {kind}, and the engine has none wider than float32: call model.float() before")
        if p.requires_grad and not p.is_floating_point():
            raise ValueError(f"zero: parameter {name} is {kind}, and only real numbers are trained: keep torch.view_as_real of it")
    for p, operation in record.changed.items() if record else ():
        if p in names:
            raise ValueError(
                f"zero: the forward changes parameter {names[p]} in place, by {operation}, and the engine keeps no such change: leave it out, "
                "or make it before fully_shard, or between steps in engine.full_parameters(writeback=True)"
            )
    owners: dict[nn.Parameter, set[nn.Module]] = {p: set() for p in names}
    for group in groups:
        for p in group.parameters.values() if group.whole else ():
            owners.setdefault(p, set()).add(group.module)
    if record:
        loose = {p for p, stacks in record.uses.items() if p in names and any(owners[p].isdisjoint(stack) for stack in stacks)}
        for group in groups:  # a unit of a module around others would be open during theirs
            if not group.whole and group.module in record.calls:
                loose |= {p for p in group.parameters.values() if p in names and not owners[p]}
    else:
        loose = {p for p in names if not owners[p]}
    for group in groups:
        left_out = record and group.module not in record.calls  # perhaps a later forward calls it, with a tied weight of another unit
        own = [p for p in group.parameters.values() if p in names and p not in loose and (group.whole or left_out or not owners[p])]
        group.parameters = {names[p]: p for p in own}
    held = {name: p for p, name in names.items() if p in loose}
    groups = [g for g in groups if g.parameters]
    if not groups:
        return [Group("", model, held)], {}
    by_module = {g.module: g for g in groups}
    calls = [by_module[m] for m in order if m in by_module]
    before: Group | None = None
    for group in groups:  # one that this forward leaves out may be used by another: it goes where it was registered
        if group not in calls:
            calls.insert(calls.index(before) + 1 if before else 0, group)
        before = group
    return calls, held
