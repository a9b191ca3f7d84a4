"""A training that continues after ranks are lost, on the number of ranks that there are:

    torchrun --nnodes 1:4 --nproc-per-node 2 --max-restarts 100 elastic.py CONFIG.json RUN STEPS

When a rank is lost, engine.backward or engine.step raises on the others, within `comm.timeout_s` of the configuration. This program
ends then, and torchrun starts it again, perhaps on another number of ranks. CONFIG.json has `train_batch_size`: each step takes the
same samples on any number of ranks that divides it. Steps after the latest checkpoint are made again."""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import zero


def made_up(samples: int) -> Dataset:
    """Points, and in which of ten parts of the plane they are."""
    x = torch.randn(samples, 2, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, ((torch.atan2(x[:, 0], x[:, 1]) + torch.pi) * 10 / 6.3).long())


def network() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(config: str, run: Path, steps: int, data: Dataset, save_every: int = 5) -> str:
    """Makes the steps that `run` lacks, and returns the hash of the weights."""
    engine = zero.fully_shard(network(), config)
    engine.commit(torch.zeros(1, 2))
    checkpoints = run / "checkpoints"
    if engine.resume(checkpoints) and engine.rank == 0:
        print(f"goes on after step {engine.steps} on {engine.size} ranks", flush=True)
    batches = iter(DataLoader(data, batch_sampler=zero.Batches(engine, len(data), seed=3)))
    while engine.steps < steps:
        for _ in range(engine.accumulation_steps):
            x, y = next(batches)
            loss = F.cross_entropy(engine(x).float(), y)
            engine.backward(loss)
            info = engine.step()
        if engine.rank == 0:
            print(json.dumps({"step": info.step, "samples": engine.samples, "loss": loss.item()}), flush=True)
        if engine.steps % save_every == 0 or engine.steps == steps:
            engine.save(checkpoints)
    weights = engine.hash()
    engine.close()
    return weights


if __name__ == "__main__":
    config, run, steps = sys.argv[1:]
    print("weights", train(config, Path(run), int(steps), made_up(1000)))
