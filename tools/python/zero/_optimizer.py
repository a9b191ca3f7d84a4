"""The engine's optimizer as PyTorch's programs know one: that of the configuration, or one that the program brings."""

import json
import math
import weakref
from collections import defaultdict
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from zero import _header
from zero._abi import ZeroError, lib
from zero._parts import is_cut, shape
from zero._pieces import Pieces

if TYPE_CHECKING:
    from zero._declared import Declared

_NUMBERS = ("lr", "betas", "eps", "weight_decay", "momentum", "dampening")  # of param_groups, which a step follows
_CALLS = ("step", "zero_grad", "state_dict", "load_state_dict", "add_param_group")
NO_COPY = (
    "zero: an engine and its optimizer cannot be copied or pickled: engine.state_dict() has the weights, engine.save(DIR) keeps all, and a "
    "copy.deepcopy(engine.model) inside of engine.full_parameters() is a plain model"
)


def _number(value: Any) -> Any:
    """Pairs (betas, or Adafactor's eps) stay pairs, and None stays None."""
    return tuple(map(_number, value)) if isinstance(value, (tuple, list)) else None if value is None else float(value)


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    return {key: _number(group[key]) for key in _NUMBERS if key in group}


# ---- a program's optimizer as a row of the engine's ----


def _adam(values: dict[str, Any]) -> dict[str, Any]:
    return values | {"adam_w_mode": values.pop("decoupled_weight_decay", False)}


def _adamw(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "decoupled_weight_decay"}


def _muon(values: dict[str, Any]) -> dict[str, Any] | None:
    same = tuple(values.pop("ns_coefficients")) == (3.4445, -4.775, 2.0315) and values["adjust_lr_fn"] != "spectral_unclamped"
    return values | {"adjust_lr_fn": values["adjust_lr_fn"] or "original", "ns_dtype": "bf16"} if same else None


_Row = tuple[str, Callable[[dict[str, Any]], dict[str, Any] | None]]
_ROWS: dict[str, _Row] = {  # by the whole name of the class: a subclass may compute something else
    "torch.optim.adamw.AdamW": ("AdamW", _adamw),
    "torch.optim.adam.Adam": ("Adam", _adam),
    "torch.optim.sgd.SGD": ("SGD", dict),
    "torch.optim.adagrad.Adagrad": ("Adagrad", dict),
    "torch.optim.Muon": ("Muon", _muon),  # as PyTorch 2.15 names it
    "torch.optim._muon.Muon": ("Muon", _muon),
    "lion_pytorch.lion_pytorch.Lion": ("Lion", lambda values: {key: values[key] for key in ("lr", "betas", "weight_decay")}),
}
_SPEED = ("foreach", "fused", "capturable", "differentiable")  # how PyTorch computes it


def _row(client: torch.optim.Optimizer) -> dict[str, Any] | None:
    """The optimizer block of the configuration that computes the same; None: none does. A class may say it itself: `zero_row`."""
    own = getattr(client, "zero_row", None)
    if own:
        return dict(own)
    name, convert = _ROWS.get(f"{type(client).__module__}.{type(client).__qualname__}", ("", dict))
    groups = [
        {key: value for key, value in group.items() if key in client.defaults and key not in _SPEED} for group in client.param_groups
    ]
    others = [{key: value for key, value in group.items() if key not in _NUMBERS} for group in groups]
    if (
        not name
        or any(other != others[0] for other in others)
        or any(map(others[0].get, ("amsgrad", "maximize", "initial_accumulator_value")))
    ):
        return None
    first = groups[0] | _numbers(groups[0])
    if "momentum" in first:  # one above 0 needs memory
        first["momentum"] = max(float(group["momentum"]) for group in groups)
    params = convert(first)
    return None if params is None else {"type": name, "params": params}


def _check_decay(groups: list[dict[str, Any]]) -> None:
    """A parameter that is cut has one dimension: a program that sorts by dimensions puts all into the group without decay."""
    cut = any(is_cut(p) and not group.get("weight_decay") and len(shape(p)) > 1 for group in groups for p in group["params"])
    decays = [group for group in groups if group.get("weight_decay")]
    if cut and decays and not any(is_cut(p) and len(shape(p)) > 1 for group in decays for p in group["params"]):
        raise ZeroError(
            "zero: matrices that zero.Init has made are all in groups with weight_decay 0, and none in one that decays: the program has sorted "
            "by p.ndim, which is 1 while each rank has a part: sort by len(p.ds_shape), or by names"
        )


def configure(config: dict[str, Any], model: nn.Module, client: torch.optim.Optimizer) -> tuple[dict[str, Any], bool]:
    """The configuration with the program's optimizer as its own, and whether that runs on pieces beside the engine."""
    for key in ("optimizer", "param_groups", "scheduler"):
        if config.get(key):
            raise ZeroError(f"zero: fully_shard has optimizer=, and the configuration has {key}: leave out one of the two")
    if any(state.get("step", 1) for state in client.state.values()):
        raise ZeroError("zero: fully_shard: the optimizer has taken steps already, and its moments would be lost: give a new one")
    names = {p: name for name, p in model.named_parameters()}
    groups = [[p for p in group["params"] if shape(p).numel()] for group in client.param_groups]
    if any(p not in names for group in groups for p in group):
        raise ZeroError(
            "zero: fully_shard: the optimizer holds a parameter that the model does not have: make it from model.parameters()"
        )
    _check_decay(client.param_groups)
    row, filled = _row(client), [group for group in groups if group]
    if row and len(filled) <= _header.ZERO_GROUPS_MAX:
        client.state.clear()  # zeros, of Adagrad
        one = {"param_groups": [{"match": names[filled[0][0]]}]} if row["type"] == "Muon" else {}  # else AdamW would take embeddings
        return config | {"optimizer": row} | one, False
    if client.state:
        raise ZeroError(
            "zero: fully_shard: the optimizer has a state before its first step, as none of the engine's: give another optimizer"
        )
    still = {"lr": 0, "betas": [0, 0], "weight_decay": 0}  # its moment is then the gradient, and the weights stay
    return config | {"optimizer": {"type": "Lion", "params": still}}, True


# ---- what the program sees ----


def _to(optimizer: "Optimizer", name: str) -> Callable[..., Any]:
    def call(client: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(optimizer, name)(*args, **kwargs)

    call.__dict__["_wrapped_by_lr_sched"] = True  # update() counts, as a scheduler's own wrapper would
    return call


class Optimizer(torch.optim.Optimizer):
    """The engine's optimizer, as schedulers of torch.optim.lr_scheduler and training loops know one: each step follows all numbers of the
    groups. Of a program's own optimizer it has the groups, the same objects, and that one's calls come here."""

    def __init__(self, engine: "Declared", client: torch.optim.Optimizer | None, pieces: bool) -> None:
        run = {key: json.loads(engine.setting(f"optimizer.params.{key}") or "null") for key in (*_NUMBERS, "nesterov")}
        run = {key: value for key, value in run.items() if value is not None} | {"lr": float(run["lr"] or 0)}
        groups: list[dict[str, Any]] = [{"params": list(engine.model.parameters())}]
        if client is None:
            groups += [{"params": [], **group} for group in json.loads(engine.setting("param_groups") or "[]")]
        for group in (run, *groups):
            group |= {"betas": tuple(group["betas"])} if "betas" in group else {}
        super().__init__([{key: group[key] for key in ("params", *run) if key in group} for group in groups], run)
        self.engine: Any = weakref.proxy(engine)
        self.client = client
        self.pieces = Pieces(client) if client and pieces else None
        if client is not None:
            self.param_groups, self.state, self.defaults = client.param_groups, client.state, client.defaults
            for name in _CALLS:
                setattr(client, name, MethodType(_to(self, name), client))
        filled = [i for i, group in enumerate(self.param_groups) if client is None or any(shape(p).numel() for p in group["params"])]
        first = filled[:1] if client is not None and engine.setting("param_groups") else []  # Muon's first has two of the engine's
        self.index = [] if pieces else first + filled  # by the engine's groups
        self.group: dict[nn.Parameter, int] = {}  # the engine's, but 0
        for i in filled[1:] if client is not None and not pieces else ():
            number = lib.zero_engine_add_group(engine._handle, _header.zero_group(lr=-1, weight_decay=-1))  # tell() has its numbers
            self.group |= dict.fromkeys(self.param_groups[i]["params"], number)
        self.rates = [float(self.param_groups[i]["lr"]) for i in self.index]
        self.told = [{} if client else _numbers(self.param_groups[i]) for i in self.index]
        self.fixed = [
            {key: group[key] for key in group.keys() & self.defaults.keys() - {*_NUMBERS, *_SPEED}} for group in self.param_groups
        ]
        self.scheduled = engine.setting("scheduler.type") is not None
        self._is_accelerate_prepared = True  # accelerate takes it as it is

    def let_go(self) -> None:
        """The program's optimizer has its own calls again."""
        for name in _CALLS if self.client is not None else ():
            self.client.__dict__.pop(name, None)

    def holds(self, parameter: nn.Parameter) -> bool:
        """Whether a step is to change it."""
        return self.client is None or any(p is parameter for group in self.param_groups for p in group["params"])

    @property
    def optimizer(self) -> "Optimizer":
        """As that of accelerate, which looks for a scheduler's optimizer in it."""
        return self

    @property
    def step_was_skipped(self) -> bool:
        return bool(self.engine.info.skipped)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "fixed"):
            raise ZeroError(
                "zero: the engine has the groups of the configuration, or of the optimizer that fully_shard got: make the groups before it"
            )
        super().add_param_group(param_group)

    def note(self) -> str:
        """What a checkpoint keeps of the groups."""
        return json.dumps([_numbers(group) for group in self.param_groups])

    def loaded(self, handle: int) -> None:
        """The groups have the saved values, until others are set."""
        for group, numbers in zip(self.param_groups, json.loads(self.engine.note("groups") or "[]"), strict=False):
            kept = {key: tuple(value) if isinstance(value, list) else value for key, value in numbers.items() if key in group}
            group |= {key: value for key, value in kept.items() if key != "lr" or self.pieces}
        for engine_group, i in enumerate(self.index if not self.scheduled else ()):
            self.param_groups[i]["lr"] = self.rates[engine_group] = lib.zero_engine_lr(handle, engine_group)
            self.told[engine_group] |= {"lr": self.rates[engine_group]}

    def state_dict(self) -> dict[str, Any]:
        """The groups, and at which step they are: the engine's checkpoints have the moments."""
        client_state, self.state = self.state, defaultdict(dict)
        try:
            return super().state_dict() | {"steps": self.engine.steps}
        finally:
            self.state = client_state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["state"] or state_dict.get("steps", 0) != self.engine.steps:
            raise ZeroError(
                "zero: the optimizer's moments are in the engine, and in its checkpoints: keep them by engine.save(DIR), and call "
                "engine.load(DIR) before optimizer.load_state_dict(...), which takes groups of the same step alone"
            )
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group |= {key: value for key, value in saved.items() if key != "params"}

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            raise ZeroError("zero: the engine's optimizers evaluate no closure; call step() without one")
        self.engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Between a backward and the next call of step: drops all micro-steps of this step, at the next forward or call of step. Else it
        changes nothing: the engine clears gradients after a step by itself."""
        for p in self.engine.model.parameters():  # the present ones
            p.grad = None

    def tell(self, handle: int) -> None:
        """The engine learns what has changed in the groups."""
        for i, (group, fixed) in enumerate(zip(self.param_groups, self.fixed, strict=True)):
            for key in (key for key, value in fixed.items() if group.get(key, value) != value and not self.pieces):
                where = f"param_groups[{i - 1}].{key}" if i else f"optimizer.params.{key}"
                raise ZeroError(
                    f"zero: {key} of param_groups[{i}] is {group[key]}, and the engine's stays at {fixed[key]}: leave it, or set {where} "
                    f"before the training; a step follows {', '.join(_NUMBERS)} alone"
                )
        now = [_numbers(self.param_groups[i]) for i in self.index]
        for i, numbers in zip(self.index, now, strict=True):
            lr, betas = numbers["lr"], numbers.get("betas", ())
            if not (0 <= lr < math.inf and all(0 <= beta < 1 for beta in betas)):
                raise ZeroError(f"zero: param_groups[{i}] has lr {lr} and betas {betas}: lr is at least 0, betas are below 1")
        for i, numbers in enumerate(now):
            changed = {key: value for key, value in numbers.items() if self.told[i].get(key) != value}
            if self.scheduled and "lr" in changed:
                lib.zero_engine_set_lr(handle, i, changed["lr"])  # refused
            if self.scheduled and "betas" in changed:
                lib.zero_engine_set_betas(handle, i, *changed["betas"])
            if changed:
                params = lib.zero_engine_params(handle, i)
                for key, value in changed.items():
                    for name, number in zip(
                        ("beta1", "beta2") if key == "betas" else (key,), value if key == "betas" else (value,), strict=True
                    ):
                        setattr(params, name, number)
                lib.zero_engine_set_params(handle, i, params)
                self.told[i] = numbers
        self.rates = [numbers["lr"] for numbers in now]

    def follow(self) -> None:
        """A schedule in the configuration has set the rates."""
        if self.scheduled:
            for i, rate in enumerate(self.rates):
                self.param_groups[self.index[i]]["lr"] = rate
                self.told[i]["lr"] = rate

    def update(self, handle: int) -> Any:
        """A step with the numbers of the groups, which a scheduler may have changed; a schedule in the configuration sets them."""
        self.tell(handle)
        info = lib.zero_engine_step(handle)
        if self.pieces:
            lr = self.param_groups[0]["lr"]
            info.lr = math.nan if lr is None else float(lr)
            if not info.skipped:
                self.pieces.update(self.engine)
        else:
            self.rates = list(info.group_lr)[: len(self.rates)]
        self.follow()
        for optimizer in (self, self.client) if self.client is not None else (self,):
            setattr(optimizer, "_opt_called", True)  # noqa: B010  # for schedulers, which warn without it
        return info

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ZeroError(NO_COPY)
