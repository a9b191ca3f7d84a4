"""Two ranks, beside the mean of both ranks' gradients in plain PyTorch, as under DistributedDataParallel."""

import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from models import MLP, loss_of_vectors, vectors
from peers.forwards import Language, Net
from peers.scenarios import close, directory, fill_gradients, norm, optimizer_of, same_weights, scenario, seeded, sharded
from two import TwoRanks


def on_two(body: Any) -> None:
    """Runs it in two copies of this process."""
    TwoRanks().assertBoth(lambda: body(int(os.environ["RANK"])))


def train_two(rank: int, make: Any, loss: Any, stages: Any = (0, 3), micro: int = 1, steps: int = 3, **config: Any) -> None:
    for stage in stages:
        config = {"gradient_accumulation_steps": micro} | config
        engine, plain = sharded(seeded(make), stage, **config), seeded(make)
        optimizer = optimizer_of([p for p in plain.parameters() if p.requires_grad])
        for step in range(steps):
            for m in range(micro):
                for other in range(2):
                    (loss(plain, step * micro + m, other) / 2 / micro).backward()
                engine.backward(loss(engine.model, step * micro + m, rank))
                info = engine.step()
            fill_gradients(plain)
            close(info.grad_norm, norm(plain), f"norm at stage {stage}")
            optimizer.step()
            optimizer.zero_grad()
        same_weights(engine, plain)
        engine.close()


def of_vectors(model: Any, batch: int, rank: int) -> Any:
    return loss_of_vectors(model, batch, rank)


@scenario
def shapes_that_two_ranks_do_not_divide() -> None:
    """Odd sizes, and fewer elements than ranks."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(96, 7), nn.Tanh(), nn.Linear(7, 1, bias=False), nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 10))

    on_two(lambda rank: train_two(rank, make, of_vectors))


@scenario
def batches_of_other_sizes_on_each_rank() -> None:
    def loss(model: Any, batch: int, rank: int) -> Any:
        x, y = vectors(batch, rank, 2 + 5 * rank)
        return F.cross_entropy(model(x), y)

    on_two(lambda rank: train_two(rank, MLP, loss, micro=2))


@scenario
def tied_frozen_and_unused_on_two_ranks() -> None:
    """A tied head, a frozen block; a block that some steps leave out."""

    def tied() -> nn.Module:
        model = Language(tied=True)
        model.blocks[0].requires_grad_(False)
        return model

    def loss_of_text(model: Any, batch: int, rank: int) -> Any:
        t = torch.randint(0, 256, (2, 8), generator=torch.Generator().manual_seed(10 * batch + rank))
        return F.cross_entropy(model(t).flatten(0, 1), t.flatten())

    def loss(model: Any, batch: int, rank: int) -> Any:
        x, y = vectors(batch, rank)
        return F.cross_entropy(model(x, batch % 2), y)

    chooses = lambda: Net(lambda m, x, use: m.head(m.blocks[1](m.blocks[0](x)) if use else m.blocks[2](m.blocks[0](x))))

    def body(rank: int) -> None:
        train_two(rank, tied, loss_of_text)
        train_two(rank, chooses, loss)

    on_two(body)


@scenario
def a_checkpoint_of_two_ranks_on_one() -> None:
    place = directory()

    def body(rank: int) -> None:
        engine = sharded(seeded(MLP, 5 + rank))
        for step in range(2):
            engine.backward(loss_of_vectors(engine.model, step, rank))
            engine.step()
        engine.save(place)
        state = engine.state_dict()
        if rank == 0:
            torch.save(state, place / "whole.pt")
        engine.close()

    on_two(body)
    engine = sharded(seeded(MLP))
    engine.load(place)
    state = torch.load(place / "whole.pt")
    assert all(torch.equal(state[name], value) for name, value in engine.state_dict().items())
