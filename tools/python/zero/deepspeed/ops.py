"""deepspeed.ops: DeepSpeed's optimizers by name. Each says which of the engine's does its work."""

from typing import Any, ClassVar

import torch

from zero._abi import ZeroError
from zero._optimizer import _NUMBERS

# Options that the engine has not, but for these values; what to do instead.
_ABSENT: dict[str, tuple[Any, str]] = {
    "eps_inside_sqrt": (False, "leave it out, eps is added outside"),
    "max_grad_norm": (0.0, "write gradient_clipping in the configuration"),
    "fp32_optimizer_states": (True, "leave it out, states are fp32"),
}
_UNUSED = ("amsgrad", "set_grad_none", *_ABSENT)


class _Named(torch.optim.Optimizer):
    """Groups of parameters for an engine. `options`: DeepSpeed's names, in their order, with their defaults."""

    kind = ""
    options: ClassVar[dict[str, Any]]

    def __init__(self, params: Any = None, *args: Any, **options: Any) -> None:
        params = options.pop("model_params", params)
        name = type(self).__name__
        if len(args) > len(self.options) or not {*options} <= {*list(self.options)[len(args) :]}:
            raise TypeError(f"zero: {name} takes {', '.join(self.options)}, each once, and not {args or ''} {', '.join(options)}")
        given = self.options | dict(zip(self.options, args, strict=False)) | options
        if given.get("amsgrad"):
            raise RuntimeError(f"{name} does not support the AMSGrad variant.")
        for key, (value, instead) in _ABSENT.items():
            if given.get(key, value) != value:
                raise ValueError(f"zero: {name} has no {key}={given[key]}: {instead}")
        super().__init__(params, {key: value for key, value in given.items() if key not in _UNUSED})

    @property
    def zero_row(self) -> dict[str, Any]:
        """The optimizer's block of the configuration."""
        names = {"adamw_mode": "adam_w_mode"}
        first = self.param_groups[0]
        for key in self.defaults:
            if key not in _NUMBERS and any(group[key] != first[key] for group in self.param_groups):
                raise ValueError(f"zero: {type(self).__name__}: {key} differs between the groups of parameters: give one for all")
        return {"type": self.kind, "params": {names.get(key, key): first[key] for key in self.defaults}}

    def step(self, closure: Any = None) -> Any:
        raise ZeroError(f"zero: {type(self).__name__} is the engine's: give it to deepspeed.initialize before its first step")


def _made(name: str, kind: str, **options: Any) -> Any:
    return type(name, (_Named,), {"kind": kind, "options": options, "__module__": __name__})


_MOMENTS: dict[str, Any] = {"lr": 1e-3, "bias_correction": True, "betas": (0.9, 0.999), "eps": 1e-8}
_LION: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0.0}
_LAMB = {"eps_inside_sqrt": False, "weight_decay": 0.0, "max_grad_norm": 0.0, "max_coeff": 10.0, "min_coeff": 0.01, "amsgrad": False}
_DECAY = {"weight_decay": 0.0, "amsgrad": False}
FusedAdam = _made("FusedAdam", "Adam", **_MOMENTS, adam_w_mode=True, **_DECAY, set_grad_none=True)
DeepSpeedCPUAdam = _made("DeepSpeedCPUAdam", "Adam", **_MOMENTS, **_DECAY, adamw_mode=True, fp32_optimizer_states=True)
FusedLion = _made("FusedLion", "Lion", **_LION, set_grad_none=True)
DeepSpeedCPULion = _made("DeepSpeedCPULion", "Lion", **_LION, fp32_optimizer_states=True)
FusedLamb = _made("FusedLamb", "Lamb", **_MOMENTS, **_LAMB)
DeepSpeedCPUAdagrad = _made("DeepSpeedCPUAdagrad", "Adagrad", lr=1e-2, eps=1e-10, **_DECAY, fp32_optimizer_states=True)


_KINDS = {"adam": FusedAdam, "adamw": FusedAdam, "lion": FusedLion, "lamb": FusedLamb, "adagrad": DeepSpeedCPUAdagrad}
_ENGINES = ("sgd", "muon", *_KINDS)  # those of a configuration that have a row


def name_of(block: dict[str, Any]) -> str:
    """As engine.optimizer_name() has it, of a configuration's block."""
    kind: str = block.get("type", "")
    return kind.lower() if kind.lower() in _KINDS else kind


def of_config(block: dict[str, Any], model: Any, given: Any) -> torch.optim.Optimizer | None:
    """The optimizer of a configuration for parameters, or groups, that a program has given. None: the engine makes it from the block."""
    kind, params = block["type"], {key: value for key, value in block.get("params", {}).items() if key != "torch_adam"}
    rows = list(given) if given is not None else list(model.parameters())
    groups = any(isinstance(row, dict) for row in rows)
    if kind.lower() in _ENGINES and not groups and {id(p) for p in model.parameters() if p.requires_grad} <= {*map(id, rows)}:
        return None
    if kind == "AdamW":
        params["adam_w_mode"] = True
    make: Any = _KINDS.get(kind.lower()) or getattr(torch.optim, kind, None)
    if make is None:
        raise ValueError(f"zero: optimizer.type is {kind!r}: give one of the engine's, or of torch.optim")
    made: torch.optim.Optimizer = make(rows, **params)
    return made
