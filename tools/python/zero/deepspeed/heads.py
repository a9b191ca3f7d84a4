"""Models whose head is read by the model itself."""

from inspect import signature
from typing import Any

import torch

import zero


def commit_head(engine: zero.Engine) -> None:
    """TRL's losses read the head's weight themselves, and not in the forwards of generate(), which may be the first: the engine is told."""
    model: Any = engine.model
    base: Any = model.get_base_model() if callable(getattr(model, "get_base_model", None)) else model
    forward = getattr(base.forward, "__func__", None)
    if forward and "fused_lm_head" in signature(forward, follow_wrapped=False).parameters:
        token = torch.ones(1, 2, dtype=torch.long, device=engine.device)
        engine.commit(input_ids=token, labels=token, fused_lm_head=True)
