"""Parameters that are frozen between steps, ignored modules, engines that only evaluate, and models that are given back."""

import copy
import os
import tempfile
import unittest

import torch
from models import configuration, loss_of_vectors, made, vectors
from modules_test import Case
from torch import nn
from two import TwoRanks

import zero

OPTIMIZERS = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=0.1),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-3, weight_decay=0.1),
    "RMSprop": lambda ps: torch.optim.RMSprop(ps, lr=1e-3, momentum=0.9, weight_decay=0.1),  # beside the engine
}


def near(state, plain, delta=1e-5):
    for name, q in plain.state_dict().items():
        torch.testing.assert_close(state[name], q, rtol=0, atol=delta, msg=lambda m: f"{name}: {m}")


def check_freezing(stage, kind="SGD", rank=0, ranks=1, frozen=(2, 3)):
    """The head is frozen in some steps: neither weight decay nor momentum moves it, and its momentum is there afterwards."""
    model, plain = made("mlp"), made("mlp")
    right, client = (OPTIMIZERS[kind](m.parameters()) for m in (plain, model))
    config = configuration(stage, gradient_clipping=0)
    del config["optimizer"]
    engine = zero.fully_shard(model, config, optimizer=client)
    for step in range(6):
        for m in (model, plain):
            m.head.requires_grad_(step not in frozen)
        before = engine.state_dict()["head.weight"] if step else None
        engine.backward(loss_of_vectors(model, step, rank))
        engine.step()
        for other in range(ranks):
            (loss_of_vectors(plain, step, other) / ranks).backward()
        right.step()
        right.zero_grad()
        if step in frozen:
            assert torch.equal(engine.state_dict()["head.weight"], before)
    near(engine.state_dict(), plain)
    hash = engine.hash()
    engine.close()
    return hash


def check_gradient_of_one_rank(stage, kind, rank):
    """Rank 0 alone has a gradient for a parameter, which is frozen before the step."""
    model, plain = made("mlp"), made("mlp")
    right, client = (OPTIMIZERS[kind](m.parameters()) for m in (plain, model))
    config = configuration(stage, gradient_clipping=0)
    del config["optimizer"]
    engine = zero.fully_shard(model, config, optimizer=client)
    for step in range(2):
        for m, ranks in ((model, [rank]), (plain, range(2))):
            for r in ranks:
                m.head.requires_grad_(step == 0 or r == 0)
                loss = loss_of_vectors(m, step, r)
                engine.backward(loss) if m is model else (loss / 2).backward()
            m.head.requires_grad_(step == 0)
        engine.step()
        right.step()
        right.zero_grad()
    near(engine.state_dict(), plain)
    engine.close()


def check_given_back(stage, rank=0):
    engine = zero.fully_shard(made("mlp"), configuration(stage))
    model = engine.model
    for step in range(2):
        engine.backward(loss_of_vectors(model, step, rank))
        engine.step()
    whole = engine.state_dict()
    engine.close(give_back=True)
    assert {type(p) for p in model.parameters()} == {nn.Parameter}
    for name, p in model.named_parameters():
        assert torch.equal(p, whole[name]) and p.requires_grad and p.dtype == torch.float32, name
    loss_of_vectors(model, 0).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    copy.deepcopy(model)
    again = zero.fully_shard(model, configuration(3))
    again.backward(loss_of_vectors(model, 0, rank))
    again.step()
    again.close()


def on_two_ranks():
    rank = int(os.environ["RANK"])
    hashes = {check_freezing(stage, "SGD", rank, 2) for stage in (0, 1, 3)}
    assert len(hashes) == 1, hashes
    assert len({check_freezing(stage, "RMSprop", rank, 2) for stage in (1, 3)}) == 1
    for stage in (1, 3):
        for kind in ("SGD", "RMSprop"):
            check_gradient_of_one_rank(stage, kind, rank)
        check_given_back(stage, rank)
        engine = zero.fully_shard(made("mlp"), {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}}, train=False)
        near({"y": engine(vectors(0)[0])}, Result(made("mlp")(vectors(0)[0])))
        engine.close()


class Result(nn.Module):
    def __init__(self, y):
        super().__init__()
        self.register_buffer("y", y.detach())


class Both(TwoRanks):
    def test_both(self):
        self.assertBoth(on_two_ranks)


class Freezes(Case):
    def test_freezing(self):
        hashes = {check_freezing(stage) for stage in range(4)}
        self.assertEqual(len(hashes), 1)
        check_freezing(3, "AdamW", frozen=(4, 5))
        self.assertEqual(len({check_freezing(stage, "RMSprop") for stage in (1, 3)}), 1)

    def test_frozen_by_the_configuration(self):
        model = made("mlp")
        config = configuration(1, gradient_clipping=0, param_groups=[{"match": "head.*", "frozen": True}])
        engine = zero.fully_shard(model, config)
        self.engines.append(engine)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        engine.backward(loss_of_vectors(model, 0))
        engine.step()
        self.assertFalse(model.head.weight.requires_grad)
        for name, value in engine.state_dict().items():
            self.assertEqual(torch.equal(value, before[name]), name.startswith("head."), name)

    def test_frozen_from_the_start(self):
        """An optimizer beside the engine holds a parameter that was frozen before: it stays, also after a load."""
        engines = []
        with tempfile.TemporaryDirectory() as place:
            for stage in (1, 3):
                model, plain = made("mlp"), made("mlp")
                for m in (model, plain):
                    m.head.requires_grad_(False)
                right, client = (OPTIMIZERS["RMSprop"](m.parameters()) for m in (plain, model))
                config = configuration(stage, gradient_clipping=0)
                del config["optimizer"]
                engine = zero.fully_shard(model, config, optimizer=client)
                self.engines.append(engine)
                engines.append(engine)
                for step in range(3):
                    loss_of_vectors(plain, step).backward()
                    right.step()
                    right.zero_grad()
                if stage == 3:
                    engine.load(place)
                for step in range(2 * (stage == 3), 2 + (stage == 3)):
                    engine.backward(loss_of_vectors(model, step))
                    engine.step()
                if stage == 1:
                    engine.save(place)
            near(engines[1].state_dict(), plain)

    def test_frozen_with_a_gradient(self):
        """PyTorch's optimizers take a gradient that came before the parameter was frozen."""
        model, plain = made("mlp"), made("mlp")
        right = torch.optim.AdamW(plain.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
        engine = self.engine(model, 2, gradient_accumulation_steps=2, gradient_clipping=0)
        for micro in range(2):
            engine.backward(loss_of_vectors(model, micro))
            (loss_of_vectors(plain, micro) / 2).backward()
            for m in (model, plain):
                m.head.requires_grad_(False)
        engine.step()
        right.step()
        near(engine.state_dict(), plain)

    def test_unfreezing_needs_memory(self):
        model = made("mlp")
        model.head.requires_grad_(False)
        engine = self.engine(model)
        self.train(engine, [0])
        model.head.requires_grad_(True)
        with self.assertRaisesRegex(zero.ZeroError, "parameter head.weight is to be trained, and was not when it moved to the engine"):
            self.train(engine, [1])

    def test_updates_in_the_backward(self):
        engine = self.mlp(stage=2, gradient_clipping=0, zero_optimization={"update_in_backward": True})
        self.train(engine, [0])
        engine.model.head.requires_grad_(False)
        with self.assertRaisesRegex(zero.ZeroError, "head.weight is frozen, and zero_optimization.update_in_backward has updated it already"):
            self.train(engine, [1])

    def test_ignored(self):
        """They are the program's: with its own optimizer, whole on each rank, and saved beside the rest."""
        for stage in (1, 3):
            model, plain = made("mlp"), made("mlp")
            engine = zero.fully_shard(model, configuration(stage, gradient_clipping=0), ignored=[model.head, model.blocks[0].a.bias])
            self.engines.append(engine)
            own, right = [model.head.weight, model.head.bias, model.blocks[0].a.bias], [*plain.head.parameters(), plain.blocks[0].a.bias]
            pair = [torch.optim.SGD(ps, lr=0.1) for ps in (own, right)]
            rest = torch.optim.AdamW([p for p in plain.parameters() if all(p is not q for q in right)], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
            for step in range(3):
                engine.backward(loss_of_vectors(model, step))
                engine.step()
                loss_of_vectors(plain, step).backward()
                rest.step()
                for optimizer in (*pair, rest):
                    optimizer.step() if optimizer is not rest else None
                    optimizer.zero_grad()
            near(engine.state_dict(), plain)

    def test_given_back(self):
        for stage in (1, 3):
            check_given_back(stage)
        engine = self.engine(made("mlp").bfloat16(), 3, bf16={"enabled": True})
        self.train(engine, [0], lambda model, step: model(vectors(step)[0].bfloat16()).float().sum())
        engine.close(give_back=True)
        self.assertEqual({p.dtype for p in engine.model.parameters()}, {torch.bfloat16})

    def test_evaluates_alone(self):
        """Without an optimizer: no memory for moments or gradients; forwards with and without gradients."""
        for stage in range(4):
            model, plain = made("mlp"), made("mlp")
            engine = zero.fully_shard(model, {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}}, train=False)
            self.engines.append(engine)
            for step in range(3):
                x = vectors(step)[0]
                torch.testing.assert_close(model(x), plain(x), rtol=0, atol=1e-6)
                with torch.no_grad():
                    torch.testing.assert_close(model(x), plain(x), rtol=0, atol=1e-6)
            self.assertEqual((engine.plan()["state_bytes"], engine.plan()["grad_bytes"]), (0, 0))
            engine.close(give_back=True)
            self.assertTrue(all(p.requires_grad for p in model.parameters()))


if __name__ == "__main__":
    unittest.main()
