"""A configuration of DeepSpeed, as the engine takes it."""

import json
import math
from typing import Any

from zero._abi import config_json

# Keys at the top that say how DeepSpeed does its work, and have no meaning here.
_IDLE = ("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "data_parallel_size", "managed_gradient_accumulation")


def loaded(config: Any) -> dict[str, Any]:
    """The dictionary itself; of a path, a text or base64, what is there; of Transformers' objects, theirs."""
    config = getattr(config, "config", config)
    if isinstance(config, dict):
        return config
    found: dict[str, Any] = json.loads(config_json(config))
    return found


def _tidy(value: Any) -> Any:
    """Without keys of None, and with sizes such as 5e8 as whole numbers."""
    if isinstance(value, dict):
        return {key: _tidy(v) for key, v in value.items() if v is not None}
    return int(value) if isinstance(value, float) and value.is_integer() and value > 1 else value


def cleaned(config: dict[str, Any], without: tuple[str, ...] = ()) -> dict[str, Any]:
    """A copy without what has no effect. The schedule is the program's, and so is the number of backwards before a step."""
    kept = {
        key: value
        for key, value in config.items()
        if "." not in key and key not in (*_IDLE, *without, "scheduler") and value is not None
    }
    if not math.isfinite(kept.get("steps_per_print") or 0):
        kept.pop("steps_per_print")
    if kept.get("tensor_parallel", {}).get("autotp_size", 0) in (0, 1):
        kept.pop("tensor_parallel", None)
    zero = kept["zero_optimization"] = _tidy(kept.get("zero_optimization", {"stage": 0}))
    knows = isinstance(zero, dict) and (zero.get("micro_order") == "vertical" or zero.get("update_in_backward"))  # the last micro-step
    return {"gradient_accumulation_by_program": not knows} | kept


def free_order(settings: dict[str, Any]) -> int:
    """The most units in use at once, where a program may call two forwards before a backward. 0: in one order, by which stage 3 gathers ahead."""
    zero = settings["zero_optimization"]
    ahead = zero.get("stage", 0) == 3 and zero.get("stage3_prefetch_bucket_size") != 0
    return 0 if ahead or not settings["gradient_accumulation_by_program"] else 2
