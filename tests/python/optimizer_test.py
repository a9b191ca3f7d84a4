"""engine.optimizer as programs use an optimizer of PyTorch: groups, schedulers, accelerate, copies."""

import copy
import pickle
import tempfile
import unittest
from pathlib import Path

import torch
from models import KINDS, Block, loss_of_vectors, made
from modules_test import Case
from torch import nn
from torch.optim import lr_scheduler

import zero


def optimizer(kind, **params):
    return {"type": kind, "params": {"lr": 1e-2, "weight_decay": 0, **params}}


PLAIN = {"AdamW": torch.optim.AdamW, "SGD": torch.optim.SGD}


class Optimizers(Case):
    def setUp(self) -> None:
        super().setUp()
        self.dir = tempfile.TemporaryDirectory()
        self.path = Path(self.dir.name)

    def tearDown(self) -> None:
        super().tearDown()
        self.dir.cleanup()

    def both(self, kind="AdamW", stage=3, params=None, **more):
        """An engine, and plain PyTorch's model and optimizer."""
        engine = self.engine(made("mlp"), stage, optimizer=optimizer(kind, **(params or {})), gradient_clipping=0, **more)
        plain = made("mlp")
        values = {"lr": 1e-2, "weight_decay": 0, **(params or {})}
        return engine, plain, PLAIN[kind](plain.parameters(), **values)

    def step(self, engine, plain, optimizer, step):
        """Returns the rate."""
        engine.backward(loss_of_vectors(engine.model, step))
        rate = engine.step().lr
        loss_of_vectors(plain, step).backward()
        self.assertEqual(rate, optimizer.param_groups[0]["lr"])
        optimizer.step()
        optimizer.zero_grad()
        return rate

    def assertWeights(self, engine, plain, delta=1e-5):
        state = engine.state_dict()
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=0, atol=delta)

    SCHEDULES = {
        "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k)),
        "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
        "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.5),
        "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=9),
        "cyclic": lambda o: lr_scheduler.CyclicLR(o, 1e-3, 1e-2, 3),
        "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
        "sequence": lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o, 0.1, 3), lr_scheduler.StepLR(o, 2)], [3]),
    }

    def test_schedules(self):
        """Rates and betas of each step, before and after a resume, in whichever order it loads the engine and the scheduler."""
        for name, make in self.SCHEDULES.items():
            for order in ("engine first", "scheduler first", "scheduler made afterwards"):
                if order != "engine first" and name not in ("one cycle", "restarts", "sequence"):
                    continue  # the others keep less
                with self.subTest(name=name, order=order):
                    engine, plain, right = self.both()
                    ours, theirs = make(engine.optimizer), make(right)
                    directory = self.path / name / order
                    for step in range(8):
                        if step == 4:
                            engine.save(directory)
                            state = copy.deepcopy(ours.state_dict())
                            engine = self.both(stage=1)[0]
                            if order == "scheduler made afterwards":
                                engine.load(directory)
                                kept = [dict(group) for group in engine.optimizer.param_groups]
                                ours = make(engine.optimizer)  # begins anew
                                engine.optimizer.param_groups[0] |= {k: kept[0][k] for k in ("lr", "betas")}
                            else:
                                ours = make(engine.optimizer)
                            if order == "scheduler first":
                                ours.load_state_dict(copy.deepcopy(state))
                            if order != "scheduler made afterwards":
                                engine.load(directory)
                            ours.load_state_dict(copy.deepcopy(state))
                        self.step(engine, plain, right, step)
                        ours.step()
                        theirs.step()
                    self.assertWeights(engine, plain)
                    self.assertEqual(engine.optimizer.param_groups[0]["betas"], right.param_groups[0]["betas"])

    def test_schedules_of_updates_in_the_backward(self):
        """The rate is that of the step, although the update comes before engine.step."""
        drive = {"device": "nvme", "nvme_path": str(self.path)}
        options = {"zero_optimization": {"update_in_backward": True, "offload_optimizer": drive}, "nvme": {"shadow": True}}
        for name in ("lambda", "one cycle"):
            engine, plain, right = self.both(stage=2, **options)
            ours, theirs = self.SCHEDULES[name](engine.optimizer), self.SCHEDULES[name](right)
            for step in range(5):
                self.step(engine, plain, right, step)
                ours.step()
                theirs.step()
            self.assertWeights(engine, plain)
            engine.close()

    def test_what_a_step_does_not_follow(self):
        """A changed setting is refused, and nothing is lost: the next step follows after it is set back."""
        groups = [{"match": ["*.bias"], "lr": 1e-3, "weight_decay": 0.5}]
        for kind, params, key, value in (
            ("SGD", {"momentum": 0.9}, "nesterov", True),
        ):
            engine, *_ = self.both(kind, params=params, param_groups=groups)
            for i, group in enumerate(engine.optimizer.param_groups):
                before, group[key] = group[key], value
                where = rf"param_groups\[0\].{key}" if i else f"optimizer.params.{key}"
                with self.assertRaisesRegex(zero.ZeroError, rf"{key} of param_groups\[{i}\] is {value}, .* stays at {before}: leave it, or set {where}"):
                    self.train(engine, [0])
                group[key] = before
                engine.step()
            self.assertEqual(engine.steps, 2)
        self.assertEqual([g["weight_decay"] for g in engine.optimizer.param_groups], [0, 0.5])
        engine, *_ = self.both("SGD")
        engine.optimizer.param_groups[0]["momentum"] = 0.5
        with self.assertRaisesRegex(zero.ZeroError, "momentum 0.5 needs a state that the plan lacks"):
            self.train(engine, [0])
        engine, *_ = self.both()
        for key, value in (("lr", -1.0), ("lr", float("nan")), ("betas", (1.0, 0.9))):
            before, engine.optimizer.param_groups[0][key] = engine.optimizer.param_groups[0][key], value
            with self.assertRaisesRegex(zero.ZeroError, "lr is at least 0, betas are below 1"):
                self.train(engine, [0])
            engine.optimizer.param_groups[0][key] = before
            engine.step()
        with self.assertRaisesRegex(zero.ZeroError, "make the groups before it"):
            engine.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
        schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2}}
        engine, *_ = self.both(scheduler=schedule)
        engine.optimizer.param_groups[0]["betas"] = (0.5, 0.9)
        with self.assertRaisesRegex(zero.ZeroError, "WarmupLR sets it: remove the scheduler block"):
            self.train(engine, [0])

    def test_numbers(self):
        """A step follows all numbers of a group, also those of a schedule that cycles the momentum, and a checkpoint keeps them."""
        for kind, params, changes in (
            ("AdamW", {}, ({"weight_decay": 0.3}, {"eps": 1e-4, "lr": 1e-3}, {"betas": (0.5, 0.7), "weight_decay": 0})),
            ("SGD", {"momentum": 0.9}, ({"momentum": 0.5}, {"dampening": 0.3, "weight_decay": 0.1}, {"momentum": 0.7})),
        ):
            engine, plain, right = self.both(kind, params=params)
            for step, change in enumerate(changes):
                for o in (engine.optimizer, right):
                    o.param_groups[0] |= change
                self.step(engine, plain, right, step)
            engine.save(self.path / kind)
            engine = self.both(kind, stage=1, params=params)[0]
            engine.load(self.path / kind)
            self.step(engine, plain, right, 3)
            self.assertWeights(engine, plain)
        engine, plain, right = self.both("SGD", params={"momentum": 0.9})
        schedules = [lr_scheduler.OneCycleLR(o, 1e-2, total_steps=6) for o in (engine.optimizer, right)]
        for step in range(5):
            self.step(engine, plain, right, step)
            [schedule.step() for schedule in schedules]
        self.assertWeights(engine, plain)

    def test_moments_in_the_program(self):
        """An optimizer's state_dict has none of the engine's, and the engine takes none: neither is lost in silence."""
        engine, plain, right = self.both()
        for step in range(2):
            self.step(engine, plain, right, step)
        state = engine.optimizer.state_dict()
        engine.optimizer.load_state_dict(state)
        for other in (state, right.state_dict()):
            with self.assertRaisesRegex(zero.ZeroError, r"moments are in the engine, .* call engine\.load\(DIR\) before optimizer"):
                self.both()[0].optimizer.load_state_dict(other)

    def test_betas(self):
        """A program may set them, of one group alone."""
        engine, plain, _ = self.both(param_groups=[{"match": ["*.bias"]}])
        biases = [p for n, p in plain.named_parameters() if n.endswith("bias")]
        others = [p for n, p in plain.named_parameters() if not n.endswith("bias")]
        right = torch.optim.AdamW([{"params": others}, {"params": biases}], lr=1e-2, weight_decay=0)
        for step in range(4):
            for o in (engine.optimizer, right):
                o.param_groups[1]["betas"] = (0.5 + 0.1 * step, 0.9)
            self.step(engine, plain, right, step)
        self.assertWeights(engine, plain)

    def test_names_of_patterns(self):
        """Those of the model fit, and for GPT-2 and compiled models those of files as well."""
        model = lambda: torch.compile(made("mlp"), backend="eager")
        for make, patterns, still in (
            (lambda: made("gpt2"), ["transformer.h.*.bias", "transformer.wte.weight"], ("bias", "wte")),
            (lambda: made("gpt2"), ["h.*.bias", "wte.*"], ("bias", "wte")),
            (model, ["blocks.*.bias"], ("bias",)),
            (model, ["_orig_mod.blocks.*.bias"], ("bias",)),
        ):
            engine = self.engine(make(), param_groups=[{"match": patterns, "lr": 0.0}])
            before = {name: p.detach().clone() for name, p in engine.model.named_parameters()}
            self.train(engine, range(2), KINDS["gpt2"].loss if "gpt2" in str(type(engine.model)).lower() else loss_of_vectors)
            for name, value in engine.state_dict().items():
                moved = not torch.equal(value, before.get(name, value))
                expected = not (name.replace("_orig_mod.", "").startswith(("transformer.h", "transformer.wte", "blocks")) and any(s in name for s in still))
                if name in before:
                    self.assertEqual(moved, expected, (patterns, name))

    def test_zero_grad_of_later_parameters(self):
        """It drops a micro-step also where parameters came, or went, between fully_shard and the first forward."""

        def new_head(model):
            model.blocks[0], model.head = Block(96), nn.Linear(96, 10)

        for change in (new_head, lambda model: None):
            torch.manual_seed(1)
            plain = made("mlp")
            change(plain)
            engine = self.engine(made("mlp"), gradient_accumulation_steps=2, gradient_clipping=0)
            torch.manual_seed(1)
            change(engine.model)
            engine.model.load_state_dict(plain.state_dict())
            for step in range(2):
                (loss_of_vectors(plain, step) / 2).backward()
            engine.backward(loss_of_vectors(engine.model, 7))
            engine.optimizer.zero_grad()
            for step in range(2):
                engine.backward(loss_of_vectors(engine.model, step))
                info = engine.step()
            norm = nn.utils.get_total_norm([p.grad for p in plain.parameters()]).item()
            self.assertAlmostEqual(info.grad_norm, norm, delta=1e-5 * norm)

    def test_accelerate(self):
        from accelerate import Accelerator

        engine, plain, right = self.both()
        make = self.SCHEDULES["lambda"]
        prepared, ours = Accelerator(cpu=True).prepare(engine.optimizer, make(engine.optimizer))
        theirs = make(right)
        for step in range(4):
            engine.backward(loss_of_vectors(engine.model, step))
            prepared.step()
            ours.step()
            prepared.zero_grad()
            loss_of_vectors(plain, step).backward()
            right.step()
            theirs.step()
            right.zero_grad()
        self.assertEqual(engine.steps, 4)
        self.assertWeights(engine, plain)

    def test_copies(self):
        engine, *_ = self.both()
        self.train(engine, [0])
        for what in (engine, engine.optimizer, {"state": [engine]}):
            for call in (copy.copy, copy.deepcopy, pickle.dumps):
                if call is copy.copy and isinstance(what, dict):
                    continue
                with self.assertRaisesRegex(zero.ZeroError, "zero: an engine and its optimizer cannot be copied or pickled"):
                    call(what)
        self.train(engine, [1])
        self.assertEqual(engine.steps, 2)


if __name__ == "__main__":
    unittest.main()
