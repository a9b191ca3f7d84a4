"""Sequences of DeepSpeed's own runtime/lr_schedules.py, or of PyTorch's and Transformers' schedules, beside ours.

compare.py PRINT_SCHEDULE deepspeed|torch: of DeepSpeed, loads that file alone, from where the package is installed, with stand-ins
for what it imports, and every double must be the same; PyTorch multiplies from step to step, and rounds in each. Exit status 3:
the package is not there.
"""
import importlib.util
import itertools
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import types

UPDATES = 120


class Optimizer:
    def __init__(self, lr, betas):
        self.defaults = {"betas": betas}
        self.param_groups = [{"lr": lr, "betas": betas}]


def load():
    found = importlib.util.find_spec("deepspeed")
    if found is None or not found.origin:
        sys.exit(3)
    torch, optim = types.ModuleType("torch"), types.ModuleType("torch.optim")
    torch.is_tensor, torch.optim, optim.Optimizer = (lambda x: False), optim, Optimizer
    package, utils = types.ModuleType("deepspeed"), types.ModuleType("deepspeed.utils")
    utils.logger = logging.getLogger("deepspeed")
    utils.logger.setLevel(logging.CRITICAL)
    sys.modules.update({"torch": torch, "torch.optim": optim, "deepspeed": package, "deepspeed.utils": utils})
    path = os.path.join(os.path.dirname(found.origin), "runtime", "lr_schedules.py")
    spec = importlib.util.spec_from_file_location("lr_schedules", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class PyTorch:
    """Schedules of torch.optim.lr_scheduler, which take an optimizer of PyTorch."""

    def __init__(self):
        try:
            import torch
        except ImportError:
            sys.exit(3)
        self.torch = torch

    def sequence(self, kind, params):
        optimizer = self.torch.optim.AdamW([self.torch.nn.Parameter(self.torch.zeros(1))], lr=0.02, betas=(0.85, 0.97))
        kinds = self.torch.optim.lr_scheduler
        schedule = getattr(kinds, kind)(optimizer, **params) if hasattr(kinds, kind) else transformers(kind, optimizer, params)
        group = optimizer.param_groups[0]
        for update in range(UPDATES):
            yield (group["lr"], *group["betas"])
            optimizer.step()
            if kind != "OneCycleLR" or update + 1 < params["total_steps"]:
                schedule.step()


def transformers(kind, optimizer, params):
    from transformers.optimization import get_scheduler

    own = {name: value for name, value in params.items() if name not in ("num_warmup_steps", "num_training_steps")}
    return get_scheduler(kind, optimizer, params.get("num_warmup_steps", 0), params["num_training_steps"], own)


def transformers_cases():
    warm = {"num_warmup_steps": [9, None], "num_training_steps": [7, UPDATES]}
    whole = {**warm, "num_training_steps": [UPDATES, 200]}  # after its end the cosine of Transformers rises again
    yield from product("cosine_with_min_lr", min_lr=[0.001, 0], **whole)
    yield from product("cosine_with_min_lr", min_lr_rate=[0.1], **whole)
    yield from product("warmup_stable_decay", num_decay_steps=[0, 30], min_lr_ratio=[0.1],
                       decay_type=["linear", "1-sqrt", None], **warm)


def product(kind, **values):
    for chosen in itertools.product(*values.values()):
        yield kind, {name: value for name, value in zip(values, chosen) if value is not None}


def torch_cases():
    yield from product("StepLR", step_size=[1, 7, 50], gamma=[0.5, None])
    yield from product("MultiStepLR", milestones=[[1], [3, 9, 30, 31]], gamma=[0.7, None])
    yield from product("ConstantLR", factor=[0.25, None], total_iters=[1, 30, None])
    yield from product("LinearLR", start_factor=[0.1, None], end_factor=[0.5, None], total_iters=[1, 40, None])
    yield from product("ExponentialLR", gamma=[0.9, 0.999])
    yield from product("PolynomialLR", total_iters=[9, 100, None], power=[2.0, 0.5, None])
    yield from product("CosineAnnealingLR", T_max=[10, 119, 200], eta_min=[0.001, None])
    yield from product("CosineAnnealingWarmRestarts", T_0=[1, 10], T_mult=[1, 2, None], eta_min=[0.001, None])
    yield from product("CyclicLR", base_lr=[0.001], max_lr=[0.1], step_size_up=[5, 30, None], step_size_down=[11, None],
                       mode=["triangular", "triangular2", "exp_range", None], gamma=[0.99, None], cycle_momentum=[False, None],
                       base_momentum=[0.7, None])
    yield from product("OneCycleLR", max_lr=[0.1], total_steps=[30, 120, 500], pct_start=[0.4, None], anneal_strategy=["linear", None],
                       three_phase=[True, None], div_factor=[10, None], final_div_factor=[100, None], cycle_momentum=[False, None])
    if importlib.util.find_spec("transformers"):
        yield from transformers_cases()


def cases():
    warm = {"warmup_num_steps": [1, 2, 7, 40], "warmup_type": ["log", "linear", None],
            "last_batch_iteration": [-1, 5, None]}
    yield from product("WarmupLR", warmup_min_lr=[0, 1e-5], warmup_max_lr=[0.03, None], **warm)
    yield from product("WarmupDecayLR", warmup_min_lr=[0, 1e-5], warmup_max_lr=[0.03], total_num_steps=[3, 100], **warm)
    for kind, length in ("WarmupLR", {}), ("WarmupDecayLR", {"total_num_steps": 100}):
        yield kind, {"warmup_max_lr": None, "warmup_num_steps": 7, **length}  # null, and not left out
    yield from product("WarmupCosineLR", total_num_steps=[3, 100], warmup_min_ratio=[0.1, None],
                       cos_min_ratio=[0, 0.07, None], **warm)
    yield from product("LRRangeTest", lr_range_test_min_lr=[0.0007, None], lr_range_test_step_size=[1, 7, None],
                       lr_range_test_step_rate=[0.3, None], lr_range_test_staircase=[True, None],
                       last_batch_iteration=[-1, 5])
    yield from product("OneCycle", cycle_min_lr=[0.0003], cycle_max_lr=[0.07], cycle_first_step_size=[7, 30.5],
                       cycle_second_step_size=[13, None], cycle_first_stair_count=[3, None],
                       cycle_second_stair_count=[4, 0, None], decay_step_size=[9, None], decay_lr_rate=[0.3, None],
                       decay_mom_rate=[0.002, None], cycle_momentum=[True, False], last_batch_iteration=[-1, 11])


def theirs(module, kind, params):
    optimizer = Optimizer(0.02, (0.85, 0.97))
    schedule = getattr(module, kind)(optimizer, **params)
    group = optimizer.param_groups[0]
    for _ in range(UPDATES):
        yield (group["lr"], *group["betas"])
        schedule.step()


def ours(binary, path, kind, params):
    optimizer = {"type": "AdamW", "params": {"lr": 0.02, "betas": [0.85, 0.97]}}
    with open(path, "w") as file:
        json.dump({"train_batch_size": 1, "optimizer": optimizer, "scheduler": {"type": kind, "params": params}}, file)
    printed = subprocess.run([binary, path, str(UPDATES)], check=True, capture_output=True, text=True).stdout
    return [tuple(map(float, line.split())) for line in printed.splitlines()]


def same(package, mine, expected):
    if package == "DeepSpeed":
        return mine == expected
    return all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-14) for a, b in zip(mine, expected))


def main():
    binary, package = os.path.abspath(sys.argv[1]), {"deepspeed": "DeepSpeed", "torch": "PyTorch"}[sys.argv[2]]
    module, listed = (PyTorch(), torch_cases()) if package == "PyTorch" else (load(), cases())
    sequence = module.sequence if package == "PyTorch" else lambda kind, params: theirs(module, kind, params)
    failed = count = 0
    with tempfile.TemporaryDirectory() as directory:
        for kind, params in listed:
            count += 1
            got = ours(binary, os.path.join(directory, "c.json"), kind, params)
            for step, (mine, expected) in enumerate(zip(got, sequence(kind, params), strict=True)):
                if not same(package, mine, expected):
                    print(f"{kind} {params}: update {step} is {mine}, {package}'s {expected}")
                    failed += 1
                    break
    print(f"{count} schedules of {UPDATES} updates, {failed} differ")
    sys.exit(failed > 0)


main()
