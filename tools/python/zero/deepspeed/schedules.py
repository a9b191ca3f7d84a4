"""deepspeed.runtime.lr_schedules: each is a function of the number of steps, and sets the groups' `lr` (OneCycle the betas, too)."""

import math
from typing import Any, ClassVar

import torch

VALID_LR_SCHEDULES = ["LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"]
_SIZES = {"lr_range_test_step_size", "cycle_first_step_size", "warmup_num_steps"}


class _Schedule:
    """`options`: the names, in their order, with their defaults. `last_batch_iteration` is the number of steps that are done, less 1."""

    options: ClassVar[dict[str, Any]]

    def __init__(self, optimizer: Any, *args: Any, last_batch_iteration: int = -1, **options: Any) -> None:
        self.optimizer: Any = optimizer if isinstance(optimizer, torch.optim.Optimizer) else getattr(optimizer, "optimizer", None)
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not a torch.optim.Optimizer: give a schedule one")
        rates = (group["lr"] for group in self.optimizer.param_groups)
        self.own = [lr.item() if isinstance(lr, torch.Tensor) else lr for lr in rates]  # _set fills a tensor
        self.last_batch_iteration = last_batch_iteration
        self.told = dict(zip(self.options, args, strict=False)) | options
        wrong = [*(self.told.keys() - self.options.keys()), *(key for key in self.options if self[key] is ...)]
        if wrong:
            raise TypeError(f"zero: {type(self).__name__} takes {', '.join(self.options)}: look at {', '.join(wrong)}")
        for key in self.options.keys() & _SIZES:
            if not (self[key] or 0) > 0:
                raise ValueError(f"zero: {type(self).__name__}: {key} is {self[key]}: give a number of steps above 0")
        if last_batch_iteration == -1:
            self._set()

    def __getitem__(self, key: str) -> Any:
        return self.told.get(key, self.options[key])

    def _each(self, key: str) -> list[float]:
        """A value for each group."""
        value, groups = self[key], len(self.own)
        if isinstance(value, list | tuple) and len(value) != groups:
            raise ValueError(f"expected {groups} values for {key}, got {len(value)}")
        return list(value) if isinstance(value, list | tuple) else [value] * groups

    def get_lr(self) -> list[float]:
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        assert getattr(self, "_last_lr", None) is not None, "need to call step() first"
        return self._last_lr

    def _set(self) -> None:
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = group["lr"].fill_(lr) if isinstance(group["lr"], torch.Tensor) else lr
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def step(self, last_batch_iteration: int | None = None) -> None:
        self.last_batch_iteration = self.last_batch_iteration + 1 if last_batch_iteration is None else last_batch_iteration
        self._set()

    def state_dict(self) -> dict[str, Any]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, sd: dict[str, Any]) -> None:
        self.last_batch_iteration = sd["last_batch_iteration"]
        self._last_lr = self.get_lr()


class LRRangeTest(_Schedule):
    """min · (1 + rate · t / size), or in stairs."""

    options: ClassVar[dict[str, Any]] = {"lr_range_test_min_lr": 1e-3, "lr_range_test_step_size": 2000, "lr_range_test_step_rate": 1.0}
    options |= {"lr_range_test_staircase": False}

    def get_lr(self) -> list[float]:
        part = (self.last_batch_iteration + 1) / self["lr_range_test_step_size"]
        part = math.floor(part) if self["lr_range_test_staircase"] else part
        return [lr * (1 + self["lr_range_test_step_rate"] * part) for lr in self._each("lr_range_test_min_lr")]


class OneCycle(_Schedule):
    """From min to max, back to min, then a decay; betas[0] the other way."""

    options: ClassVar[dict[str, Any]] = {"cycle_min_lr": ..., "cycle_max_lr": ..., "decay_lr_rate": 0.0, "cycle_first_step_size": 2000}
    options |= {"cycle_second_step_size": None, "cycle_first_stair_count": 0, "cycle_second_stair_count": None, "decay_step_size": 0}
    options |= {"cycle_momentum": True, "cycle_min_mom": 0.8, "cycle_max_mom": 0.9, "decay_mom_rate": 0.0}

    def _halves(self) -> tuple[float, float]:
        first, second = self["cycle_first_step_size"], self["cycle_second_step_size"]
        return first, first if second is None else second

    def _part(self) -> float:
        """0 at the ends of a cycle, 1 at its middle."""
        first, second = self._halves()
        at = (self.last_batch_iteration + 1) % (first + second)
        rising, falling = self["cycle_first_stair_count"], self["cycle_second_stair_count"]
        falling = rising if falling is None else falling
        done, size, stairs = (at, first, rising) if at <= first else (first + second - at, second, falling)
        return math.floor(done * stairs / size) / stairs if stairs else done / size

    def _factor(self, rate: float) -> float | None:
        """That of the decay after the cycle; None: within it."""
        past, size = self.last_batch_iteration - sum(self._halves()) + 1, self["decay_step_size"]
        return None if past < 1 else 1 + rate * past / size if size else 1

    def get_lr(self) -> list[float]:
        factor, pairs = self._factor(self["decay_lr_rate"]), zip(self._each("cycle_min_lr"), self._each("cycle_max_lr"), strict=True)
        part = self._part() if self.last_batch_iteration >= 0 else 0
        return [low + (high - low) * part if factor is None else low / factor for low, high in pairs]

    def get_mom(self) -> list[tuple[float, float]] | None:
        if not self["cycle_momentum"] or "betas" not in self.optimizer.defaults:
            return None
        factor, pairs = self._factor(self["decay_mom_rate"]), zip(self._each("cycle_min_mom"), self._each("cycle_max_mom"), strict=True)
        part = self._part() if self.last_batch_iteration >= 0 else 1
        return [(high - (high - low) * part if factor is None else high * factor, 0.99) for low, high in pairs]

    def _set(self) -> None:
        super()._set()
        for group, betas in zip(self.optimizer.param_groups, self.get_mom() or (), strict=False):
            group["betas"] = betas


class WarmupLR(_Schedule):
    """From min to max, by the logarithm of the steps or their number, then `_after`."""

    options: ClassVar[dict[str, Any]] = {"warmup_min_lr": 0.0, "warmup_max_lr": None, "warmup_num_steps": 1000, "warmup_type": "log"}

    def _part(self) -> float:
        t, steps = self.last_batch_iteration, max(2, self["warmup_num_steps"])
        if t >= steps:
            return self._after(t, steps)
        return float(t / steps if self["warmup_type"] == "linear" else math.log(t + 1) / math.log(steps))

    def _after(self, t: int, warmup: int) -> float:
        return 1.0

    def get_lr(self) -> list[float]:
        lowest = self._each("warmup_min_lr")
        if self.last_batch_iteration < 0:
            return lowest
        highest = self.own if self["warmup_max_lr"] is None else self._each("warmup_max_lr")
        return [low + (high - low) * self._part() for low, high in zip(lowest, highest, strict=True)]


class WarmupDecayLR(WarmupLR):
    """Then a straight line to 0."""

    options: ClassVar[dict[str, Any]] = {"total_num_steps": ..., **WarmupLR.options, "warmup_max_lr": 0.001}

    def _after(self, t: int, warmup: int) -> float:
        total = float(self["total_num_steps"])
        return max(0.0, (total - t) / max(1.0, total - warmup))


class WarmupCosineLR(WarmupLR):
    """Parts of the groups' own rates: a warm-up to 1, then half a cosine to `cos_min_ratio`."""

    options: ClassVar[dict[str, Any]] = {"total_num_steps": ..., "warmup_min_ratio": 0.0, "warmup_num_steps": 1000}
    options |= {"cos_min_ratio": 0.0001, "warmup_type": "log"}

    def get_lr(self) -> list[float]:
        part = 0.0 if self.last_batch_iteration < 0 else self._part()
        if 0 <= self.last_batch_iteration < max(2, self["warmup_num_steps"]):
            part = self["warmup_min_ratio"] + part * (1 - self["warmup_min_ratio"])
        return [lr * part for lr in self.own]

    def _after(self, t: int, warmup: int) -> float:
        done = min(1.0, (t - warmup + 1) / max(1, self["total_num_steps"] - warmup))
        lowest = float(self["cos_min_ratio"])
        return max(0.0, lowest + (1 - lowest) * (1 + math.cos(math.pi * done)) / 2)


def from_config(config: dict[str, Any], optimizer: torch.optim.Optimizer) -> Any:
    """The schedule of a configuration's `scheduler`: one of these, or one of torch.optim.lr_scheduler."""
    kind: str = config["type"]
    make = globals().get(kind) if kind in VALID_LR_SCHEDULES else getattr(torch.optim.lr_scheduler, kind, None)
    if make is None:
        given = f"{', '.join(VALID_LR_SCHEDULES)}, or of torch.optim.lr_scheduler"
        raise ValueError(f"zero: scheduler.type is {kind!r}: give one of {given}")
    return make(optimizer, **config.get("params", {}))
