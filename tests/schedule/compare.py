"""Sequences of DeepSpeed's own runtime/lr_schedules.py beside ours: every double must be the same.

compare.py PRINT_SCHEDULE: loads that file alone, from where the package is installed, with stand-ins for what it
imports. Exit status 3: DeepSpeed is not there.
"""
import importlib.util
import itertools
import json
import logging
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


def product(kind, **values):
    for chosen in itertools.product(*values.values()):
        yield kind, {name: value for name, value in zip(values, chosen) if value is not None}


def cases():
    warm = {"warmup_num_steps": [1, 2, 7, 40], "warmup_type": ["log", "linear", None],
            "last_batch_iteration": [-1, 5, None]}
    yield from product("WarmupLR", warmup_min_lr=[0, 1e-5], warmup_max_lr=[0.03, None], **warm)
    yield from product("WarmupDecayLR", warmup_min_lr=[0, 1e-5], warmup_max_lr=[0.03], total_num_steps=[3, 100], **warm)
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


def main():
    module, binary = load(), os.path.abspath(sys.argv[1])
    failed = count = 0
    with tempfile.TemporaryDirectory() as directory:
        for kind, params in cases():
            count += 1
            got = ours(binary, os.path.join(directory, "c.json"), kind, params)
            for step, (mine, expected) in enumerate(zip(got, theirs(module, kind, params), strict=True)):
                if mine != expected:
                    print(f"{kind} {params}: update {step} is {mine}, DeepSpeed's {expected}")
                    failed += 1
                    break
    print(f"{count} schedules of {UPDATES} updates, {failed} differ")
    sys.exit(failed > 0)


main()
