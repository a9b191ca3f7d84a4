"""losses_test.py [KIND...]: 4 steps of each model beside plain PyTorch, at stages 1 and 3: losses, norms of gradients, and one hash."""

import sys
import unittest
import warnings

import torch
from models import KINDS, configuration, made, plain_losses

import zero

torch.set_num_threads(1)
warnings.simplefilter("ignore")
STEPS, failed = 4, []
for kind in sys.argv[1:] or KINDS:
    try:
        norms: list[float] = []
        expected, hashes, worst, worst_norm = plain_losses(kind, STEPS, norms=norms), set(), 0.0, 0.0
    except unittest.SkipTest as lacks:
        print(f"{kind:14} skipped: {lacks}")
        continue
    for stage in (1, 3):
        engine = zero.fully_shard(made(kind), configuration(stage), KINDS[kind].units)
        for step in range(STEPS):
            loss = KINDS[kind].loss(engine.model, step)
            engine.backward(loss)
            worst_norm = max(worst_norm, abs(engine.step().grad_norm / norms[step] - 1))
            worst = max(worst, abs(loss.item() - expected[step][0]))
        hashes.add(engine.hash())
        engine.close()
    print(f"{kind:14} worst difference {worst:.1e}, of norms {worst_norm:.1e}, {len(hashes)} hash", flush=True)
    if not worst <= (1e-5 if kind == "resnet" else 2e-6) or not worst_norm < 1e-4 or len(hashes) > 1:
        failed.append(kind)
if failed:
    sys.exit(f"differ: {' '.join(failed)}")
