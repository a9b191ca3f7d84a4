"""What the scenarios share: the table of them, and a training on the engine beside the same one in plain PyTorch.

A scenario is a function that returns if it holds. If it is one that zero refuses, `refused` is what the sentence says."""

import re
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import zero
from torch import nn

from models import configuration

engines: list[zero.Engine] = []  # of the present scenario
places: list[Any] = []  # its temporary directories


@dataclass
class Scenario:
    run: Callable[[], None]
    topic: str
    refused: str | None


table: list[Scenario] = []


def scenario(run: Any = None, *, refused: str | None = None) -> Any:
    """Puts a function into the table."""
    if run is None:
        return lambda function: scenario(function, refused=refused)
    table.append(Scenario(run, run.__module__.rpartition(".")[2], refused))
    return run


def seeded(make: Callable[[], Any], seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return make()


def directory() -> Path:
    places.append(tempfile.TemporaryDirectory())
    return Path(places[-1].name)


def sharded(model: nn.Module, stage: int = 3, kind: str = "SGD", units: Any = None, options: Any = None, **config: Any) -> zero.Engine:
    params = {"SGD": {"lr": 0.1, "momentum": 0.9}, "AdamW": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}}[kind]
    config = {"optimizer": {"type": kind, "params": params}, "gradient_clipping": 0} | config
    engines.append(zero.fully_shard(model, configuration(stage, **config), units, **options or {}))
    return engines[-1]


def optimizer_of(parameters: Any, kind: str = "SGD") -> torch.optim.Optimizer:
    if kind == "SGD":
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


def norm(model: nn.Module) -> float:
    return float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))


def close(got: Any, expected: Any, what: str, tolerance: float = 1e-5) -> None:
    """Equal but for what rounding in fp32 leaves."""
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")


def fill_gradients(model: nn.Module) -> None:
    """As the engine's: none is zero, and all are dense."""
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad.to_dense() if p.grad.is_sparse else p.grad


def same_weights(engine: zero.Engine, plain: nn.Module, tolerance: float = 1e-5) -> None:
    state, expected = engine.state_dict(), plain.state_dict()
    assert state.keys() == expected.keys(), state.keys() ^ expected.keys()
    for name, value in expected.items():
        close(state[name], value, name, tolerance)


def train_both(
    make: Callable[[], nn.Module],
    loss: Callable[[nn.Module, int], torch.Tensor],
    *,
    stages: tuple[int, ...] = (1, 3),
    steps: int = 3,
    micro: int = 1,
    kind: str = "SGD",
    tolerance: float = 1e-5,
    between: Callable[[nn.Module], object] | None = None,
    prepare: Callable[[zero.Engine], object] | None = None,
    **options: Any,
) -> tuple[zero.Engine, nn.Module]:
    """Losses, the gradients' norm and weights are those of plain PyTorch. `between` is called of the model between two steps."""
    for stage in stages:
        engine, plain = sharded(seeded(make), stage, kind, gradient_accumulation_steps=micro, **options), seeded(make)
        if prepare:
            prepare(engine)
        optimizer = optimizer_of([p for p in plain.parameters() if p.requires_grad], kind)
        for batch in range(steps * micro):
            expected = seeded(lambda: loss(plain, batch), batch)
            seeded((expected / micro).backward, batch)
            losses = [seeded(lambda: loss(engine.model, batch), batch)]
            close(losses[0].detach(), expected.detach(), f"loss of batch {batch} at stage {stage}", tolerance)
            seeded(lambda: engine.backward(losses.pop()), batch)
            info = engine.step()
            if (batch + 1) % micro == 0:
                fill_gradients(plain)
                close(info.grad_norm, norm(plain), f"norm of the gradient of batch {batch} at stage {stage}", tolerance)
                optimizer.step()
                optimizer.zero_grad()
                for model in (plain, engine.model) if between else ():
                    between(model)
        same_weights(engine, plain, tolerance)
    return engine, plain


def run(chosen: str = "") -> int:
    """Runs those whose topic and name have `chosen`, and returns how many fail."""
    counts = dict.fromkeys(("holds", "refused", "fails"), 0)
    for s in table:
        name = f"{s.topic}: {s.run.__name__.replace('_', ' ')}"
        if chosen not in name:
            continue
        began, how, said = time.process_time(), "holds", ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                s.run()
            if s.refused:
                how, said = "fails", f"expected a sentence with {s.refused!r}"
        except Exception as error:
            text = str(error)
            how = "refused" if s.refused and text.startswith("zero: ") and re.search(s.refused, text) else "fails"
            said = text if how == "refused" else traceback.format_exc()
        finally:
            while engines:
                engines.pop().close()
            while places:
                places.pop().cleanup()
        counts[how] += 1
        print(f"{how:7} {name} ({time.process_time() - began:.2f} s){': ' + said if said else ''}", flush=True)
    print(", ".join(f"{count} {how}" for how, count in counts.items()))
    return counts["fails"]
