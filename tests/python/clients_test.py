"""Optimizers that the program brings: fully_shard(model, config, optimizer=...) trains as plain PyTorch with the same optimizer."""

import contextlib
import copy
import os
import shutil
import tempfile
import unittest
import warnings
from collections import OrderedDict
from pathlib import Path

import torch
from models import configuration, loss_of_vectors, made
from modules_test import Case
from torch import nn
from torch.optim import lr_scheduler
from two import TwoRanks

import zero


def grouped(model, **second):
    """Two groups: weights, and biases with values of their own."""
    named = dict(model.named_parameters())
    biases = [p for name, p in named.items() if name.endswith("bias")]
    return [{"params": [p for name, p in named.items() if not name.endswith("bias")], "mine": "kept"}, {"params": biases, **second}]


class Mine(torch.optim.Optimizer):
    """A program's own: nobody knows its rule."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["last"] = 0.5 * state["last"] + p.grad if state else p.grad.clone()
                state["count"] = state.get("count", 0) + 1
                p.sub_(state["last"].tanh() * group["lr"] / state["count"])


O = torch.optim
ROWS = {
    "AdamW": lambda m: O.AdamW(grouped(m, weight_decay=0.0, lr=3e-3), lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1, eps=1e-6),
    "Adam": lambda m: O.Adam(grouped(m, betas=(0.5, 0.9)), lr=1e-2, weight_decay=0.1),
    "SGD": lambda m: O.SGD(grouped(m, lr=0.1), lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    "SGD, one with momentum": lambda m: O.SGD(grouped(m, momentum=0.5), lr=0.05),
    "Adagrad": lambda m: O.Adagrad(grouped(m, eps=1e-6), lr=1e-2, lr_decay=0.01),
}
PIECES = {
    "RMSprop": lambda m: O.RMSprop(grouped(m, lr=1e-3), lr=1e-2, momentum=0.5, eps=1e-3),
    "AMSGrad": lambda m: O.AdamW(m.parameters(), lr=1e-2, amsgrad=True),
    "its own": lambda m: Mine(grouped(m, lr=1e-3)),
    "nine groups": lambda m: O.AdamW([{"params": [p], "lr": 1e-2 / (i + 1)} for i, p in enumerate(m.parameters())], lr=1e-2),
}
STEPS = 5


def change(optimizer, step):
    """What programs write into groups between steps."""
    first, last = optimizer.param_groups[0], optimizer.param_groups[-1]
    if step == 1:
        for key, value in (("weight_decay", 0.3), ("eps", 1e-4), ("momentum", 0.7)):
            last |= {key: value} if last.get(key) else {}
    if step == 2:
        first["lr"] *= 0.5
        last |= {"betas": (0.6, 0.8)} if "betas" in last else {}


class Pair:
    """An engine with an optimizer of the program's, and plain PyTorch's loop over the batches of all ranks."""

    def __init__(self, make, stage, rank=0, ranks=1, **config):
        self.rank, self.ranks, self.delta = rank, ranks, 2e-6
        self.plain, model = made("mlp"), made("mlp")
        self.right, self.client = make(self.plain), make(model)
        config = {key: value for key, value in configuration(stage, **config).items() if key != "optimizer"}
        self.engine = zero.fully_shard(model, config, optimizer=self.client)

    def step(self, number, scheduled=()):
        loss = loss_of_vectors(self.engine.model, number, self.rank)
        self.engine.backward(loss)
        info = self.engine.step()
        for rank in range(self.ranks):
            (loss_of_vectors(self.plain, number, rank) / self.ranks).backward()
        norm = nn.utils.clip_grad_norm_(self.plain.parameters(), 1.0).item()
        assert abs(info.grad_norm - norm) < self.delta * max(1, norm), (info.grad_norm, norm)
        self.right.step()
        self.right.zero_grad()
        for schedule in scheduled:
            schedule.step()

    def check(self, delta=1e-5):
        for (name, value), q in zip(self.engine.state_dict().items(), self.plain.state_dict().values()):
            torch.testing.assert_close(value, q, rtol=0, atol=delta, msg=lambda m: f"{name}: {m}")


def train(pair, steps=range(STEPS)):
    for number in steps:
        change(pair.client, number)
        change(pair.right, number)
        pair.step(number)
    pair.check()
    return pair.engine.hash()


def on_two_ranks():
    rank = int(os.environ["RANK"])
    for name, make in (ROWS | PIECES).items():
        hashes = set()
        for stage in (0, 2, 3) if name in ("AdamW", "its own") else (1, 3):
            pair = Pair(make, stage, rank, 2)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                hashes.add(train(pair))
            flat = [str(w.message) for w in said if "as flat tensors" in str(w.message)]
            assert len(flat) == (name == "its own" and stage > 0), (name, stage, flat)
            if name in ("AdamW", "its own", "RMSprop"):
                pair.engine.save(os.path.join(PLACE, name))
                pair.engine.load(os.path.join(PLACE, name))
                hashes.add("saved")
                train(pair, range(STEPS, STEPS + 2))
            pair.engine.close()
        assert len(hashes - {"saved"}) == 1, (name, hashes)


PLACE = tempfile.mkdtemp()


class Both(TwoRanks):
    def test_both(self):
        """And one rank goes on from what two have saved."""
        self.assertBoth(on_two_ranks)
        for name in ("AdamW", "its own", "RMSprop"):
            pair = Pair((ROWS | PIECES)[name], 1)
            pair.engine.load(os.path.join(PLACE, name))
            for number in range(STEPS):
                pair.ranks = 2
                for rank in range(2):
                    (loss_of_vectors(pair.plain, number, rank) / 2).backward()
                change(pair.right, number)
                nn.utils.clip_grad_norm_(pair.plain.parameters(), 1.0)
                pair.right.step(), pair.right.zero_grad()
            pair.check()
            self.assertEqual(pair.client.param_groups[0]["lr"], pair.right.param_groups[0]["lr"])
            if name in PIECES:
                copied = shutil.copytree(os.path.join(PLACE, name), os.path.join(PLACE, name + ", a part"))
                next(Path(copied).glob("step_*/program-00001.bin")).unlink()
                other = Pair(PIECES[name], 1)
                with self.assertRaisesRegex(zero.ZeroError, r"no state of the optimizer for elements .* as if a program"):
                    other.engine.load(copied)
                other.engine.close()
            pair.ranks = 1
            for number in range(10, 12):
                pair.step(number)
            pair.check()
            pair.engine.close()


class Clients(Case):
    def pair(self, make, stage, **config):
        pair = Pair(make, stage, **config)
        self.engines.append(pair.engine)
        return pair

    def test_rows_and_pieces(self):
        for name, make in (ROWS | PIECES).items():
            with self.subTest(name=name):
                hashes = {train(self.pair(make, stage)) for stage in ((0, 3) if name in ROWS else (1, 3))}
                self.assertEqual(len(hashes), 1)

    def test_muon(self):
        """Its matrices alone, with the rest frozen by the program."""

        def make(model):
            for name, p in model.named_parameters():
                p.requires_grad_(p.ndim == 2)
            return O.Muon([p for p in model.parameters() if p.ndim == 2], lr=0.05, weight_decay=0.1)

        if not hasattr(O, "Muon"):
            self.skipTest("this PyTorch has no Muon")
        for stage in (1, 3):
            pair = self.pair(make, stage)
            self.assertIsNone(pair.engine.optimizer.pieces)
            pair.delta = 1e-3  # both iterate in bf16, and add in another order: of a gradient of rank 4 that is amplified
            for number in range(3):
                pair.step(number)
            pair.check(1e-2)
            first = made("mlp").state_dict()
            self.assertTrue(all(torch.equal(t, first[name]) for name, t in pair.engine.state_dict().items() if t.ndim == 1))

    def test_muon_of_the_engine(self):
        """It updates embeddings, too, and groups have their numbers."""
        if not hasattr(O, "Muon"):
            self.skipTest("this PyTorch has no Muon")
        for second in (None, 0.02):
            torch.manual_seed(0)
            model = nn.Sequential(OrderedDict((name, nn.Linear(16, 16, bias=False)) for name in ("embed", "middle", "lm_head")))
            plain = copy.deepcopy(model)
            both = []
            for m in (model, plain):
                ps = list(m.parameters())
                groups = ps if second is None else [{"params": ps[:2]}, {"params": ps[2:], "lr": second}]
                both.append(O.Muon(groups, lr=0.05, weight_decay=0.1))
            engine = zero.fully_shard(model, {"train_micro_batch_size_per_gpu": 4}, optimizer=both[0])
            self.engines.append(engine)
            self.assertIsNone(engine.optimizer.pieces)
            for number in range(2):
                x = torch.randn(64, 16)
                engine.backward(model(x).square().mean())
                engine.step()
                plain(x).square().mean().backward()
                both[1].step(), both[1].zero_grad()
            for (name, value), q in zip(engine.state_dict().items(), plain.state_dict().values()):
                torch.testing.assert_close(value, q, rtol=0, atol=3e-3, msg=lambda m: f"{name}: {m}")

    def test_only_what_it_holds(self):
        """Parameters that no group has stay, as in plain PyTorch."""
        for make in (lambda m: O.AdamW(m.head.parameters(), lr=1e-2), lambda m: O.RMSprop(m.head.parameters(), lr=1e-2)):
            pair = self.pair(make, 2, gradient_clipping=0)
            first = made("mlp").blocks[0].a.weight
            for number in range(3):
                pair.engine.backward(loss_of_vectors(pair.engine.model, number))
                pair.engine.step()
                pair.right.zero_grad()
                loss_of_vectors(pair.plain, number).backward()
                pair.right.step()
            pair.check()
            self.assertTrue(torch.equal(pair.engine.state_dict()["blocks.0.a.weight"], first))

    def test_many_parameters(self):
        """A second group with more names than the configuration takes patterns, beside an empty one."""
        for stage in (0, 3):
            torch.manual_seed(0)
            model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(70)))
            plain = copy.deepcopy(model)
            clients = []
            for m in (model, plain):
                kinds = [[p for p in m.parameters() if p.ndim == dims] for dims in (2, 1)]
                empty = [nn.Parameter(torch.empty(0))] if m is plain else []
                clients.append(O.AdamW([{"params": kinds[0]}, {"params": empty}, {"params": kinds[1], "weight_decay": 0.0, "lr": 3e-3}], lr=1e-2))
            engine = zero.fully_shard(model, {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}}, optimizer=clients[0])
            self.engines.append(engine)
            self.assertIsNone(engine.optimizer.pieces)
            for number in range(3):
                x = torch.full((4, 4), number + 1.0)
                engine.backward(model(x).square().mean())
                engine.step()
                plain(x).square().mean().backward()
                clients[1].step(), clients[1].zero_grad()
            for (name, value), q in zip(engine.state_dict().items(), plain.state_dict().values()):
                torch.testing.assert_close(value, q, rtol=0, atol=1e-5, msg=lambda m: f"{name}: {m}")

    def test_numbers_of_other_kinds(self):
        """Adafactor's eps is a pair, with None in it, and that of transformers has no lr."""
        makes = [lambda m: O.Adafactor(m.parameters(), lr=1e-2)]
        with contextlib.suppress(ImportError):
            from transformers.optimization import Adafactor

            makes.append(lambda m: Adafactor(m.parameters()))
        for make in makes:
            pair = self.pair(make, 1)
            pair.step(0)
            with tempfile.TemporaryDirectory() as place:
                pair.engine.save(place)
                groups = [dict(group) for group in pair.client.param_groups]
                pair.client.param_groups[0]["eps"] = (1.0, 1.0)
                pair.engine.load(place)
                self.assertEqual([{**group, "params": 0} for group in pair.client.param_groups], [{**group, "params": 0} for group in groups])
            pair.step(1)
            pair.check()

    def test_loads_the_first_numbers(self):
        """A load gives groups the saved numbers, also if these are the ones that the optimizer was made with."""
        for name in ("RMSprop", "AdamW"):
            pair = self.pair((ROWS | PIECES)[name], 1)
            groups = [{**group, "params": 0} for group in pair.client.param_groups]
            pair.step(0)
            with tempfile.TemporaryDirectory() as place:
                pair.engine.save(place)
                for group in pair.client.param_groups:
                    group |= {"lr": 0.0, "weight_decay": 0.5}
                pair.engine.load(place)
            self.assertEqual([{**group, "params": 0} for group in pair.client.param_groups], groups)
            pair.step(1)
            pair.check()

    def test_states_by_name(self):
        """DeepSpeed's call gives the states that the optimizer has, by its names, or says that there is none."""
        from zero.deepspeed.partition import safe_get_full_optimizer_state

        for name, key, other in (("AdamW", "exp_avg", "sum"), ("SGD", "momentum_buffer", "exp_avg"), ("Adagrad", "sum", "momentum_buffer")):
            pair = self.pair(ROWS[name], 1, gradient_clipping=0)
            pair.engine.backward(loss_of_vectors(pair.engine.model, 0))
            pair.engine.step()
            loss_of_vectors(pair.plain, 0).backward()
            pair.right.step()
            found, right = pair.engine.model.head.weight, pair.plain.head.weight
            torch.testing.assert_close(safe_get_full_optimizer_state(found, key), pair.right.state[right][key], rtol=0, atol=1e-6)
            with self.assertRaisesRegex(zero.ZeroError, f"zero: {name} has no state '{other}' here: ask for one of {key}"):
                safe_get_full_optimizer_state(found, other)
        pair = self.pair(PIECES["AMSGrad"], 1)
        pair.step(0)
        with self.assertRaisesRegex(zero.ZeroError, "AdamW runs on each rank's own elements: no state of it is whole"):
            safe_get_full_optimizer_state(pair.engine.model.head.weight, "exp_avg")

    def test_same_objects(self):
        pair = self.pair(ROWS["AdamW"], 2)
        engine, client = pair.engine, pair.client
        self.assertIs(engine.optimizer.param_groups, client.param_groups)
        self.assertEqual(client.param_groups[0]["mine"], "kept")
        self.assertIs(client.param_groups[1]["params"][0], engine.model.blocks[0].a.bias)

    def test_its_own_calls(self):
        """A loop that calls the optimizer's step and zero_grad, with a scheduler made before or after."""
        for early in (False, True):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                model, plain = made("mlp"), made("mlp")
                client, right = (O.AdamW(m.parameters(), lr=1e-2) for m in (model, plain))
                schedules = [lr_scheduler.OneCycleLR(right, 1e-2, total_steps=6)]
                schedules += [lr_scheduler.OneCycleLR(client, 1e-2, total_steps=6)] if early else []
                config = configuration(3, gradient_clipping=0)
                del config["optimizer"]
                engine = zero.fully_shard(model, config, optimizer=client)
                self.engines.append(engine)
                schedules += [] if early else [lr_scheduler.OneCycleLR(client, 1e-2, total_steps=6)]
                for number in range(5):
                    for m, o in ((model, client), (plain, right)):
                        loss_of_vectors(m, number).backward()
                        o.step()
                        o.zero_grad()
                    for schedule in schedules:
                        schedule.step()
                    self.assertEqual(client.param_groups[0]["lr"], right.param_groups[0]["lr"])
            for (name, value), q in zip(engine.state_dict().items(), plain.state_dict().values()):
                torch.testing.assert_close(value, q, rtol=0, atol=1e-5)

    def test_save_and_load(self):
        for name in ("AdamW", "SGD", "its own", "RMSprop"):
            pair = self.pair((ROWS | PIECES)[name], 3)
            train(pair)
            with tempfile.TemporaryDirectory() as place:
                pair.engine.save(place)
                train(pair, range(STEPS, STEPS + 2))
                hash = pair.engine.hash()
                other = self.pair((ROWS | PIECES)[name], 1)
                other.engine.load(place)
                for a, b in zip(other.client.param_groups, pair.client.param_groups):
                    self.assertEqual({**a, "params": 0}, {**b, "params": 0})
                for number in range(STEPS, STEPS + 2):
                    other.engine.backward(loss_of_vectors(other.engine.model, number))
                    other.engine.step()
                self.assertEqual(other.engine.hash(), hash)
                if name == "its own":
                    path = next(Path(place).glob("step_*/program-00000.bin"))
                    path.write_bytes(path.read_bytes()[:-9] + b"123456789")
                    with self.assertRaisesRegex(zero.ZeroError, "is damaged, which has the optimizer's state"):
                        self.pair(PIECES[name], 1).engine.load(place)
                    path.unlink()
                    with self.assertRaisesRegex(zero.ZeroError, "no state of the optimizer for elements 0 to .* of parameter"):
                        self.pair(PIECES[name], 1).engine.load(place)

    def test_overflow(self):
        """A step that fp16 skips changes nothing, here neither."""
        pair = self.pair(PIECES["its own"], 1, fp16={"enabled": True, "initial_scale_power": 4})
        pair.step = None
        engine = pair.engine
        for number, factor in ((0, 1), (1, float("inf")), (2, 1)):
            before = engine.hash() if number else None
            engine.backward(loss_of_vectors(engine.model, number) * factor)
            self.assertEqual(engine.step().skipped, number == 1)
            if number == 1:
                self.assertEqual(engine.hash(), before)

    def test_close(self):
        """The optimizer is the program's again."""
        pair = self.pair(ROWS["SGD"], 1)
        pair.step(0)
        pair.engine.close()
        self.assertIs(pair.client.step.__self__, pair.client)
        self.assertNotIn("zero_grad", vars(pair.client))

    def test_refused(self):
        def shard(make=ROWS["AdamW"], optimizer=None, **more):
            model = made("mlp")
            config = configuration(1, **more)
            if "optimizer" not in more:
                del config["optimizer"]
            engine = zero.fully_shard(model, config, optimizer=optimizer or make(model))
            self.engines.append(engine)
            return engine

        taken = O.AdamW([nn.Parameter(torch.ones(2))])
        taken.param_groups[0]["params"][0].grad = torch.ones(2)
        taken.step()
        drive = {"offload_optimizer": {"device": "nvme", "nvme_path": PLACE}}
        for sentence, arguments in (
            ("has optimizer=, and the configuration has optimizer", {"optimizer": ROWS["AdamW"](made("mlp")), "param_groups": []}),
            ("has optimizer=, and the configuration has param_groups", {"param_groups": [{"match": "*"}]}),
            ("has optimizer=, and the configuration has scheduler", {"scheduler": {"type": "WarmupLR"}}),
            ("holds a parameter that the model does not have", {"optimizer": ROWS["AdamW"](made("mlp"))}),
            ("has taken steps already", {"optimizer": taken}),
            ("offload_optimizer.device is \"nvme\": leave that out", {"make": PIECES["its own"], "zero_optimization": drive}),
            ("averages .* do not see it", {"make": PIECES["its own"], "ema": {"decay": 0.9}}),
        ):
            if sentence.endswith("has optimizer"):
                with self.assertRaisesRegex(zero.ZeroError, sentence):
                    zero.fully_shard(made("mlp"), configuration(1), optimizer=arguments["optimizer"])
                continue
            with self.assertRaisesRegex(zero.ZeroError, sentence):
                shard(**arguments)
        engine = shard(ROWS["SGD"])
        engine.optimizer.param_groups[1]["nesterov"] = False
        engine.backward(loss_of_vectors(engine.model, 0))
        with self.assertRaisesRegex(zero.ZeroError, r"nesterov of param_groups\[1\] is False"):
            engine.step()


if __name__ == "__main__":
    unittest.main()
