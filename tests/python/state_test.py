"""Types, tiers, checkpoints, weights in and out."""

import gc
import json
import os
import resource
import signal
import subprocess
import tempfile
import unittest
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import torch
import torch.nn.functional as F
from models import KINDS, MLP, Block, OwnParameter, configuration, loss_of_vectors, made, plain_losses, tokens, vectors
from modules_test import Case
from safetensors import safe_open

import zero
from zero._leaf import Leaf

STEPS = 6


class State(Case):
    def setUp(self) -> None:
        super().setUp()
        self.dir = tempfile.TemporaryDirectory()
        self.path = Path(self.dir.name)

    def tearDown(self) -> None:
        super().tearDown()
        self.dir.cleanup()

    def test_bf16(self):
        """From the same weights: each step's loss is PyTorch's to the bit, and each weight afterwards but for its last bits. By
        itself such a bit makes one of some ten thousand bf16 weights round the other way, and losses part by some 1e-4; so do
        PyTorch's own, if the norm is summed in double. T5's loss is a bf16 number: 6e-2 is its last bit."""
        for name in ("gpt2", "llama", "qwen3", "mixtral", "t5"):
            states = []
            expected = plain_losses(name, 4, half=True, states=states)
            engine = self.engine(made(name), bf16={"enabled": True})
            for step, state in enumerate(states):
                self.assertEqual(self.train(engine, [step], KINDS[name].loss), expected[step])
                for key, value in engine.state_dict().items():
                    torch.testing.assert_close(value, state[key], rtol=5e-7, atol=1e-9)
                engine.load_state_dict(state)

    def test_bf16_beside_fp32(self):
        """A parameter whose group keeps fp32 is fp32 in the model, in its gradient and in the files."""

        class Normed(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.norm, self.head = torch.nn.Linear(96, 96), torch.nn.LayerNorm(96), torch.nn.Linear(96, 10)

            def forward(self, x):
                return self.head(self.norm(self.first(x)))

        losses, norms = [], []
        for more in ({}, {"bf16": {"enabled": True}, "param_groups": [{"match": "norm.*", "dtype": "fp32"}]}):
            torch.manual_seed(0)
            engine = self.engine(Normed(), **more)
            seen = []
            engine.model.norm.register_forward_pre_hook(lambda module, args: seen.append(module.weight.detach().clone()))
            for step in range(STEPS):
                loss = loss_of_vectors(engine.model, step)
                engine.backward(loss)
                losses.append(loss.item())
                norms.append(engine.step().grad_norm)
            self.assertTrue(torch.equal(seen[0], torch.ones(96)), seen[0])
        self.assertLosses(losses[STEPS:], losses[:STEPS], 0.05)
        self.assertLosses(norms[STEPS:], norms[:STEPS], 0.05)
        engine.save_pretrained(self.path)
        file = safe_open(self.path / "model.safetensors", framework="pt")
        types = {"norm.weight": torch.float32, "norm.bias": torch.float32, "head.weight": torch.bfloat16}
        self.assertEqual({name: file.get_tensor(name).dtype for name in types}, types)

    def test_inputs_in_bf16(self):
        """Units get bf16; what the model gets, computes between units, or keeps in a list, stays as it is."""

        class Aware(torch.nn.Module):
            def __init__(self, blocks):
                super().__init__()
                self.blocks = torch.nn.ModuleList(Block(96) for _ in range(blocks))
                self.time, self.head, self.seen = torch.nn.Linear(96, 96), torch.nn.Linear(96, 1), []
                self.register_buffer("frequencies", torch.arange(96) / 7)

            def forward(self, x, when, labels):
                self.seen.append((x.dtype, when.tolist(), labels.tolist()))
                x = x + self.time((when[:, None] * self.frequencies).sin())
                for block in self.blocks:
                    x = block(x + self.frequencies)
                return F.mse_loss(self.head(x)[:, 0].float(), labels)

        class Around(torch.nn.Module):
            def __init__(self, model):
                super().__init__()
                self.model = model

            def forward(self, *args, **kwargs):
                return self.model(*args, **kwargs)

        class Many(Block):
            def forward(self, pair, options):
                self.seen = pair, options
                return super().forward(pair[0]) * options["scale"]

        class Listed(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.block, self.head = Many(96), torch.nn.Linear(96, 10)

            def forward(self, x, options):
                self.kept = []
                return self.head(self.block((x, self.kept), options))

        x, when, labels = vectors(0)[0], torch.tensor([1999.0, 2001, 3, 4]), torch.tensor([2013.0, 2, 3, 4.01])
        for blocks, around in ((0, lambda m: m), (2, lambda m: m), (0, lambda m: Around(Around(m)))):
            torch.manual_seed(0)
            plain = deepcopy(model := Aware(blocks))
            engine = self.engine(around(model), bf16={"enabled": True}, gradient_clipping=0)
            for step in range(2):
                loss = engine(x, when, labels) if step else engine(x, when=when, labels=labels)
                right = plain(x, when, labels)
                engine.backward(loss)
                engine.step()
                self.assertEqual(model.seen[-1], plain.seen[-1])
                self.assertAlmostEqual(loss.item() / right.item(), 1, delta=0.01)
            with engine.full_parameters(), torch.no_grad():
                self.assertEqual(model.head(x).dtype, torch.float32)
        engine, options = self.engine(Listed(), bf16={"enabled": True}), {"scale": torch.ones(1), "name": "x"}
        engine.backward(engine(x, options).float().square().mean())
        engine.step()
        (given, kept), found = engine.model.block.seen
        self.assertEqual((given.dtype, found["scale"].dtype, options["scale"].dtype), (torch.bfloat16, torch.bfloat16, torch.float32))
        self.assertIs(kept, engine.model.kept)
        own = OwnParameter()
        own.register_forward_pre_hook(lambda module, args: seen.append(args[0].dtype))
        seen = []
        for model in (torch.nn.Linear(96, 10), own):  # a model with parameters of its own
            engine = self.engine(model, 2, fp16={"enabled": True, "initial_scale_power": 4})
            self.train(engine, range(2))
        self.assertEqual(set(seen), {torch.float32})
        own = zero.fully_shard(MLP(), configuration(3, bf16={"enabled": True}), cast_inputs=False)
        self.engines.append(own)
        with self.assertRaisesRegex(RuntimeError, "dtype"):
            loss_of_vectors(own.model, 0)
        own.backward(F.cross_entropy(own(x.bfloat16()).float(), vectors(0)[1]))
        own.step()

    def test_fp16(self):
        fp16 = {"enabled": True, "initial_scale_power": 8}
        engine = self.engine(made("mlp"), fp16=fp16)
        losses = self.train(engine)
        self.assertLosses(losses, [row[0] for row in plain_losses("mlp", len(losses))], 5e-3)
        engine = self.engine(made("mlp"), fp16={"enabled": True, "initial_scale_power": 24})
        loss = loss_of_vectors(engine.model, 0)
        broken = loss * 1
        broken.register_hook(lambda grad: 1 / 0)
        self.assertRaises(ZeroDivisionError, engine.scaled(broken).backward)
        with self.assertRaisesRegex(zero.ZeroError, r"lacks the loss scale of fp16: call engine.backward\(loss\)"):
            loss.backward()
        del loss, broken
        engine.backward(loss_of_vectors(engine.model, 0))
        self.assertTrue(engine.step().skipped)

    def test_updates_in_the_backward(self):
        """Steps above the bound are repeated, and info says so; the weights are those of updates at the step."""
        hashes, bound = set(), 4.2
        for updates in (False, True):
            drive = {"device": "nvme", "nvme_path": str(self.path / f"drive_{updates}")}
            zero_optimization = {"update_in_backward": updates, "offload_optimizer": drive}
            options = {"gradient_clipping": bound, "nvme": {"shadow": True}, "gradient_accumulation_steps": 2}
            engine = self.engine(made("mlp"), 2, zero_optimization=zero_optimization, **options)
            steps = []
            for step in range(2 * STEPS):
                engine.backward(loss_of_vectors(engine.model, step))
                steps.append(engine.step())
            self.assertEqual([info.updated for info in steps], [False, True] * STEPS)
            expected = [updates and info.updated and info.grad_norm > bound for info in steps]
            self.assertEqual([info.repeated for info in steps], expected)
            self.assertEqual(sum(expected[1::2]) in range(1, STEPS), updates)
            hashes.add(engine.hash())
        self.assertEqual(len(hashes), 1)

    def test_a_shadow_of_an_earlier_run(self):
        """It is written over: this package goes on from checkpoints."""
        drive = {"device": "nvme", "nvme_path": str(self.path / "drive")}
        for load in (False, False, True):
            engine = self.engine(made("mlp"), 2, zero_optimization={"offload_optimizer": drive}, nvme={"shadow": True})
            if load:
                self.assertTrue(engine.resume(self.path / "run"))
            self.train(engine, range(2))
            engine.save(self.path / "run")
            self.assertEqual(engine.steps, 4 if load else 2)
            engine.close()

    def test_parked(self):
        """A park between steps changes no bit, wherever the parameters' memory is afterwards."""
        hashes = set()
        for tier in (None, "cpu", "nvme"):
            offload = {"offload_optimizer": {"device": "none", "nvme_path": str(self.path)}}
            engine = self.engine(made("gpt2"), zero_optimization={"stage": 2} | offload)
            self.train(engine, range(2), KINDS["gpt2"].loss)
            if tier:
                before = sum(planned for place, _, planned, _ in engine.memory() if place == "device")
                engine.park(tier)
                rows = engine.memory()
                self.assertLess(10 * sum(planned for place, _, planned, _ in rows if place == "device"), before)
                self.assertIn((tier, "parked state"), [row[:2] for row in rows])
                self.assertEqual([row[2] for row in rows], [row[3] for row in rows])
                with self.assertRaisesRegex(zero.ZeroError, "the engine is parked"):
                    self.train(engine, [2], KINDS["gpt2"].loss)
                with self.assertRaisesRegex(RuntimeError, r"is used while the engine is parked: call engine.unpark\(\)"):
                    next(engine.model.parameters()).sum()
                with self.assertRaisesRegex(zero.ZeroError, "the engine is parked"):
                    engine.state_dict()
                held = torch.ones(1 << 20)  # where the memory was
                engine.unpark()
            self.train(engine, range(2, 4), KINDS["gpt2"].loss)
            hashes.add(engine.hash())
            with self.assertRaisesRegex(RuntimeError, "wte.weight is changed"):
                next(engine.model.parameters()).data.zero_()
        self.assertEqual(len(hashes), 1)
        del held
        with self.assertRaisesRegex(ValueError, 'engine.park: tier is .gpu.; give "cpu" or "nvme"'):
            engine.park("gpu")

    def test_tiers(self):
        hashes = {}
        for half in ({}, {"bf16": {"enabled": True}}):
            for state, weights in (("", ""), ("cpu", ""), ("nvme", ""), ("nvme", "nvme"), ("cpu", "cpu")):
                offload = {"offload_optimizer": {"device": state}} if state else {}
                offload |= {"offload_param": {"device": weights}} if weights else {}
                for place in offload.values():
                    place |= {"nvme_path": str(self.path)} if place["device"] == "nvme" else {}
                engine = self.engine(made("gpt2"), zero_optimization=offload, **half)
                self.train(engine, loss=KINDS["gpt2"].loss)
                hashes.setdefault(bool(half), set()).add(engine.hash())
                self.engines.pop().close()
        self.assertEqual({k: len(v) for k, v in hashes.items()}, {False: 1, True: 1})

    def test_save_and_load(self):
        """At another stage, by an engine that has not run, and by one that has."""
        whole = self.engine(made("mlp"), 1)
        expected = self.train(whole, range(2 * STEPS))
        first = self.engine(made("mlp"), 3)
        self.train(first, range(STEPS))
        first.save(self.path / "run" / "checkpoints", notes={"position": "24"})
        for stage in (0, 3):
            second = self.engine(made("mlp"), stage)
            if stage == 3:
                self.train(second, range(2))
            second.load(self.path / "run" / "checkpoints")
            self.assertEqual((second.steps, second.note("position")), (STEPS, "24"))
            self.assertLosses(self.train(second, range(STEPS, 2 * STEPS)), expected[STEPS:], 0)
            self.assertEqual(second.hash(), whole.hash())

    def test_a_forked_child(self):
        """It leaves its parent's engine alone, also at its end, which does what close() does, and a save in the background is whole."""
        engine = self.engine(made("mlp"), checkpoint={"async": True})
        self.train(engine, range(2))
        engine.save(self.path / "forked")
        child = os.fork()
        if not child:
            said = 0
            for call in (lambda: loss_of_vectors(engine.model, 0), engine.hash, engine.step, engine.close):
                try:
                    call()
                except zero.ZeroError as error:
                    said += "parent process" in str(error)
            os._exit(said)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 3)  # close() does nothing
        losses = self.train(engine, range(2, 4))
        engine.save_wait()
        other = self.engine(made("mlp"))
        self.assertTrue(other.resume(self.path / "forked"))
        self.assertEqual(self.train(other, range(2, 4)), losses)

    def test_save_in_the_background(self):
        """It is complete when the engine is closed, or gone; one that fails says so."""
        background = {"async": True}
        for ends in (lambda engine: engine.close(), lambda engine: engine.save_wait(), lambda engine: self.engines.pop()):
            engine = self.engine(made("mlp"), checkpoint=background)
            self.train(engine, range(2))
            expected = engine.hash()
            directory = self.path / f"run{len(self.engines)}"
            engine.save(directory)
            ends(engine)
            del engine
            gc.collect()
            self.assertTrue((directory / "latest").exists(), os.listdir(directory))
            other = self.engine(made("mlp"), 1)
            self.assertTrue(other.resume(directory))
            self.assertEqual((other.hash(), other.steps), (expected, 2))
        (directory / "latest").unlink()  # a kill in the first save
        self.assertTrue(other.resume(directory))
        self.assertFalse(other.resume(self.path))
        for call in ("close", "save_wait"):
            engine = self.engine(made("mlp"), checkpoint=background)
            self.train(engine, range(2))
            with self.a_small_drive():
                engine.save(self.path / "full")
                with self.assertRaisesRegex(zero.ZeroError, "File too large"):
                    getattr(engine, call)()
            self.assertFalse((self.path / "full" / "latest").exists())
        other.save_pretrained(self.path)
        weights = (self.path / "model.safetensors").read_bytes()
        self.train(other, range(2))
        with self.a_small_drive(), self.assertRaises(OSError):
            other.save_pretrained(self.path)
        self.assertEqual((self.path / "model.safetensors").read_bytes(), weights)

    @contextmanager
    def a_small_drive(self):
        """Inside, no file becomes larger than 4 KiB."""
        limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)

    def test_rates_after_a_load(self):
        """The saved one holds; one that is set after the load counts, also if the configuration has the same."""
        engine = self.engine(made("mlp"))
        engine.optimizer.param_groups[0]["lr"] = 1e-5
        self.train(engine, range(2))
        engine.save(self.path / "run")
        for rate, expected in ((None, 1e-5), (1e-3, 1e-3), (2e-4, 2e-4)):
            engine = self.engine(made("mlp"))
            engine.load(self.path / "run")
            if rate:
                engine.optimizer.param_groups[0]["lr"] = rate
            torch.save(engine.optimizer.state_dict(), self.path / "rates")
            torch.load(self.path / "rates")  # of torch's own types
            for step in range(2):
                engine.backward(loss_of_vectors(engine.model, step))
                self.assertEqual((engine.step().lr, engine.optimizer.param_groups[0]["lr"]), (expected, expected))

    def test_load_after_an_exception(self):
        engine = self.engine(made("mlp"))
        self.train(engine, range(2))
        engine.save(self.path / "run")
        expected = self.train(engine, [2])
        fail = engine.model.blocks[1].b.register_forward_hook(lambda *_: (_ for _ in ()).throw(ValueError("bad batch")))
        with self.assertRaises(ValueError):
            loss_of_vectors(engine.model, 3)
        fail.remove()
        engine.load(self.path / "run")
        self.assertEqual(self.train(engine, [2]), expected)

    def test_load_within_a_step(self):
        """After a micro-step, after a forward without its backward, and after an evaluation between them."""
        for free in (False, True):
            engine = self.engine(made("mlp"), gradient_accumulation_steps=2, free_order=free)
            self.train(engine, range(2))
            directory = self.path / f"run{free}"
            engine.save(directory)
            expected = self.train(engine, (2, 3))
            for micro_steps, forward, evaluation in ((1, False, False), (0, True, False), (1, True, False), (1, True, True), (1, False, True)):
                engine.load(directory)
                self.train(engine, range(4, 4 + micro_steps))
                loss = loss_of_vectors(engine.model, 6) if forward else None
                if evaluation:
                    with torch.no_grad():
                        loss_of_vectors(engine.model, 7)
                engine.load(directory)
                self.assertEqual(self.train(engine, (2, 3)), expected)
                del loss

    def test_shared_buffers_and_parameters_of_integers(self):
        """Forwards change them. A state has copies; a buffer of two names stays one, also where it moves to another device."""

        class Moving(torch.Tensor):
            def to(self, *device):
                return self.as_subclass(torch.Tensor).clone()

        class Counting(MLP):
            def __init__(self):
                super().__init__()
                self.register_buffer("count", torch.zeros(1).as_subclass(Moving))
                self.register_buffer("same", self.count)
                self.number = torch.nn.Parameter(torch.zeros(1, dtype=torch.long), requires_grad=False)

            def forward(self, x):
                with torch.no_grad():
                    self.count += 1
                    self.number += 1
                return super().forward(x)

        engine = self.engine(Counting())
        engine.commit()
        self.assertIs(engine.model.count, engine.model.same)
        state = engine.state_dict()
        self.train(engine, range(2))
        names = ("count", "same", "number")
        self.assertEqual([state[name].item() for name in names], [0, 0, 0])
        self.assertEqual([engine.state_dict()[name].item() for name in names], [2, 2, 2])

    def test_state_dict(self):
        engine = self.engine(made("gpt2"))
        self.train(engine, loss=KINDS["gpt2"].loss)
        state = engine.state_dict()
        plain = KINDS["gpt2"].make().eval()
        plain.load_state_dict(state)
        engine.model.eval()
        with torch.no_grad():
            expected = KINDS["gpt2"].loss(plain, 3).item()
            self.assertAlmostEqual(KINDS["gpt2"].loss(engine.model, 3).item(), expected, delta=1e-6)
        other = self.engine(KINDS["gpt2"].make(), 0)
        other.load_state_dict(state)
        self.assertEqual(other.hash(), engine.hash())
        before = other.hash()
        with self.assertRaisesRegex(RuntimeError, r"Missing key\(s\).*lm_head.weight"):
            other.load_state_dict({k: v for k, v in state.items() if "wte" not in k and "lm_head" not in k})
        with self.assertRaisesRegex(RuntimeError, r"Unexpected key\(s\).*extra"):
            other.load_state_dict({**state, "extra": torch.zeros(1)})
        self.assertEqual(other.hash(), before)

    def test_full_parameters(self):
        engine = self.engine(made("mlp"))
        self.train(engine)
        before = engine.state_dict()
        with engine.full_parameters() as model:
            self.assertTrue(torch.equal(model.head.weight, before["head.weight"]))
            copy = {name: p.clone() for name, p in model.named_parameters()}
            model.head.weight.data.zero_()
        self.assertEqual(copy.keys(), before.keys())
        self.assertTrue(torch.equal(engine.state_dict()["head.weight"], before["head.weight"]))
        with engine.full_parameters(writeback=True) as model:
            model.head.weight.data.mul_(2)
        self.assertTrue(torch.equal(engine.state_dict()["head.weight"], 2 * before["head.weight"]))
        with self.assertRaisesRegex(zero.ZeroError, "leave out writeback or rank0_only"):
            with engine.full_parameters(writeback=True, rank0_only=True):
                pass
        self.assertEqual(engine.load_state_dict({}, strict=False).missing_keys, list(before))
        self.train(engine)

    def test_a_copy_of_the_model(self):
        """It is a plain one, of which the engine knows nothing, also where the whole model is one unit."""
        for make in (lambda: made("mlp"), lambda: torch.nn.Linear(96, 10)):
            engine = self.engine(make())
            self.train(engine, range(2))
            with engine.full_parameters() as model:
                teacher = deepcopy(model)
                with self.assertRaisesRegex(zero.ZeroError, "trains nothing inside of full_parameters"):
                    engine.backward(loss_of_vectors(model, 2))
            loss = loss_of_vectors(engine.model, 2)
            expected = loss_of_vectors(teacher, 2)
            self.assertEqual(loss.item(), expected.item())
            engine.backward(loss)
            expected.backward()
            norm = torch.nn.utils.get_total_norm([p.grad for p in teacher.parameters()])
            self.assertAlmostEqual(engine.step().grad_norm, norm.item(), delta=1e-5)
            loss_of_vectors(teacher, 2).backward()
            self.train(engine, range(3, STEPS))

    def test_averages(self):
        """Those of AveragedModel, but for its one rounding more. To look at them, and to evaluate them, changes no bit of the training."""
        average_with = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        for stage, more in ((0, {}), (3, {}), (3, {"bf16": {"enabled": True}})):
            models = [made("mlp") for _ in range(2)]
            for model in models:
                model.blocks[0].a.weight.requires_grad_(False)
            engine, unseen = self.engine(models[0], stage, ema={"decay": 0.9}, **more), self.engine(models[1], stage, **more)
            plain = made("mlp")
            expected = torch.optim.swa_utils.AveragedModel(plain, multi_avg_fn=average_with)
            engine.commit(vectors(0)[0])
            for step in range(-1, STEPS):
                self.train(engine, [step] if step >= 0 else [])
                plain.load_state_dict(engine.state_dict())
                expected.update_parameters(plain)
                with engine.full_parameters(averages=True) as model, torch.no_grad():
                    loss = loss_of_vectors(model, 99).item()
                self.assertAlmostEqual(loss, loss_of_vectors(expected.module, 99).item(), delta=1e-6)
                with engine.averaged() as model, torch.no_grad():
                    there = loss_of_vectors(model, 99).item()
                self.assertAlmostEqual(there, loss, delta=0.05 if more else 1e-6)
            state, found = expected.module.state_dict(), engine.state_dict(averages=True)
            self.assertEqual(state.keys(), found.keys())
            for key, value in state.items():
                torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-8)
            self.train(unseen, range(STEPS))
            self.assertEqual(unseen.hash(), engine.hash())
            self.assertNotEqual(found["head.weight"].tolist(), engine.state_dict()["head.weight"].tolist())
            directory = self.path / f"{stage}{len(more)}"
            engine.save(directory / "run")
            engine.save_pretrained(directory / "out", torch.float32, averages=True)
            taken, read = self.engine(made("mlp")), self.engine(zero.load_pretrained(made("mlp"), directory / "out"))
            taken.load(directory / "run", averages=True)
            for other in (taken, read):
                for key, value in other.state_dict().items():
                    self.assertTrue(torch.equal(value, found[key]), key)
            self.assertEqual(taken.steps, 0)
        with self.assertRaisesRegex(zero.ZeroError, "has no averaged weights: set ema.decay in the configuration"):
            unseen.state_dict(averages=True)
        with self.assertRaisesRegex(zero.ZeroError, "averages are not written back"):
            with engine.full_parameters(writeback=True, averages=True):
                pass
        self.train(unseen)  # a call that is refused leaves the parameters in the engine

    def test_averages_in_place(self):
        """What is refused meanwhile, and that the weights come back, also after an exception in an evaluation."""
        engine = self.engine(made("mlp"), 3, ema={"decay": 0.9})
        self.train(engine, range(STEPS))
        before, weights = engine.hash(), engine.state_dict()["head.weight"]
        averages = engine.state_dict(averages=True)["head.weight"]
        self.assertFalse(torch.equal(weights, averages))
        seen = []
        hook = engine.model.head.register_forward_pre_hook(lambda module, args: seen.append(module.weight.detach().clone()))
        with engine.averaged() as model, torch.no_grad():
            loss_of_vectors(model, 99)
            for refused in (engine.hash, engine.state_dict, lambda: engine.save(self.path / "no"), lambda: self.train(engine)):
                with self.assertRaisesRegex(zero.ZeroError, "the averages are in the place of the weights"), torch.enable_grad():
                    refused()
        with torch.no_grad():
            loss_of_vectors(engine.model, 99)
        self.assertTrue(torch.equal(seen[0], averages) and torch.equal(seen[-1], weights))
        hook.remove()
        fails = engine.model.blocks[1].b.register_forward_hook(lambda *_: (_ for _ in ()).throw(ValueError("bad batch")))
        with self.assertRaisesRegex(ValueError, "bad batch"), engine.averaged() as model, torch.no_grad():
            loss_of_vectors(model, 99)
        fails.remove()
        self.assertEqual(engine.hash(), before)
        self.train(engine)
        with self.assertRaisesRegex(zero.ZeroError, "there are no averaged weights"):
            with self.engine(made("mlp")).averaged():
                self.fail("there are none")

    def test_pretrained(self):
        """Out to transformers, and in again from its files, on the meta device."""
        for name, kind in (("llama", "LlamaForCausalLM"), ("gpt2", "GPT2LMHeadModel")):
            engine = self.engine(made(name))  # skips without transformers
            import transformers

            self.train(engine, loss=KINDS[name].loss)
            engine.save_pretrained(self.path / name)
            model = getattr(transformers, kind).from_pretrained(self.path / name)
            state = engine.state_dict()
            for key, value in model.state_dict().items():
                self.assertTrue(torch.equal(value, state[key]), key)
            model.save_pretrained(self.path / (name + "2"), max_shard_size="50KB")
            with torch.device("meta"):
                empty = KINDS[name].make().train()
            zero.load_pretrained(empty, self.path / (name + "2"))
            second = self.engine(empty, 1)
            with torch.no_grad():
                loss = KINDS[name].loss(empty, 0).item()
            with torch.no_grad():
                self.assertAlmostEqual(loss, KINDS[name].loss(engine.model, 0).item(), delta=1e-6)
            self.assertEqual(second.hash(), engine.hash())

    @unittest.skipUnless(os.environ.get("ZERO_COMMAND"), "no zero command")
    def test_training_goes_to_and_fro(self):
        """`zero train` for two steps, PyTorch for two, `zero train` again: the same names, and one hash at each change."""
        settings = {"gpt2": "n_layer n_embd n_head n_positions", "llama": "hidden_size num_hidden_layers num_attention_heads"}
        settings["llama"] += " num_key_value_heads intermediate_size max_position_embeddings"
        (self.path / "text").write_text("to and fro " * 1000)
        for name, keys in settings.items():
            engine = self.engine(made(name), 1)
            model = {"model_type": name, "vocab_size": 256, "tie_word_embeddings": engine.model.config.tie_word_embeddings}
            model |= {key: getattr(engine.model.config, key) for key in keys.split()}
            config, run = self.path / (name + ".json"), self.path / name
            config.write_text(json.dumps(configuration(3, model=model, data={"path": [str(self.path / "text")]})))
            command = [os.environ["ZERO_COMMAND"], "train", config, "--run", run, "--quiet"]
            trained = lambda *options: subprocess.check_output([*command, *options], text=True).split()[-1]
            first = trained("--steps", "2", "--save-every", "2")
            engine.load(run / "checkpoints")
            self.assertEqual((engine.hash(), engine.steps), (first, 2))
            self.train(engine, range(2), KINDS[name].loss)
            engine.save(run / "checkpoints", notes={"steps": "4", "samples": "16"})
            self.assertEqual(trained("--steps", "4", "--resume"), engine.hash())
            self.assertNotEqual(engine.hash(), first)

    @unittest.skipUnless(os.environ.get("ZERO_COMMAND"), "no zero command")
    def test_checkpoints_cross(self):
        """Weights go from PyTorch through `zero ckpt import` and come back through `zero ckpt export`."""
        zero_command = os.environ["ZERO_COMMAND"]
        for name in ("gpt2", "llama"):
            engine = self.engine(made(name))
            engine.save_pretrained(self.path / name)
            subprocess.run([zero_command, "ckpt", "import", self.path / name, self.path / (name + ".in")], check=True)
            second = self.engine(made(name))
            second.load(self.path / (name + ".in"), weights_only=True)
            self.assertEqual(second.hash(), engine.hash())
            self.train(engine, loss=KINDS[name].loss)
            engine.save(self.path / (name + ".run"))
            command = [zero_command, "ckpt", "export", self.path / (name + ".run"), self.path / (name + ".out")]
            subprocess.run(command, check=True)
            with torch.device("meta"):
                model = KINDS[name].make()
            zero.load_pretrained(model, self.path / (name + ".out"))
            third = self.engine(model)
            self.assertEqual(third.hash(), engine.hash())

    def test_generate(self):
        # Of t5 and bart the first forward, of the decoder, leaves out the encoder: dummy_inputs then give the order.
        for name in ("gpt2", "t5", "bart"):
            plain, engine = made(name).eval(), self.engine(made(name).eval())
            prompt = tokens(0)[:, :4]
            for model in (plain, engine.model):
                model.generation_config.pad_token_id = 0
            options = {"max_new_tokens": 5, "do_sample": False}
            for _ in range(2):
                self.assertEqual(plain.generate(prompt, **options).tolist(), engine.model.generate(prompt, **options).tolist())
            losses = self.train(engine, loss=KINDS[name].loss)
            self.assertLosses(losses, [row[0] for row in plain_losses(name, len(losses))])

    def test_meta(self):
        """Initialised on the meta device: the same at every stage, and it trains."""
        hashes = set()
        for stage in (0, 3):
            torch.manual_seed(3)
            with torch.device("meta"):
                model = KINDS["gpt2"].make()
            engine = self.engine(model, stage)
            losses = self.train(engine, loss=KINDS["gpt2"].loss)
            self.assertAlmostEqual(losses[0], 5.545, delta=0.05)
            weight = engine.state_dict()["transformer.h.0.attn.c_attn.weight"]
            self.assertAlmostEqual(weight.std().item(), 0.02, delta=0.002)
            hashes.add(engine.hash())
        self.assertEqual(len(hashes), 1)
        with torch.device("meta"):
            model = KINDS["resnet"].make()
        engine = self.engine(model)
        losses = self.train(engine, loss=KINDS["resnet"].loss)
        self.assertLess(losses[0], 3)
        self.assertEqual(engine.state_dict()["bn.num_batches_tracked"].item(), len(losses))

    def test_meta_without_first_values(self):
        """What no function initialises has a name in the refusal; torch's attention has a function of another name."""

        def meta(make):
            with torch.device("meta"):
                return make()

        state = self.engine(meta(lambda: made("attention"))).state_dict()
        self.assertGreater(state["encoder.layers.0.self_attn.in_proj_weight"].std().item(), 0.05)

        class Table(MLP):
            def __init__(self, dtype):
                super().__init__()
                self.blocks[1].register_buffer("table", torch.ones(96, dtype=dtype))

        class Given(OwnParameter):
            def _init_weights(self, module):
                """All but its own."""
                if module is not self:
                    getattr(module, "reset_parameters", lambda: None)()

        for make, name in (
            (OwnParameter, "parameter scale"),
            (Given, "parameter scale"),
            *((lambda dtype=dtype: Table(dtype), r"buffer blocks\.1\.table") for dtype in (torch.float32, torch.int64, torch.bool)),
        ):
            with self.assertRaisesRegex(ValueError, f"{name} of a (Own|Given|Block).* on the meta device.* give fully_shard init="):
                self.engine(meta(make)).commit()

        def init(module):
            if isinstance(module, Block):
                module.table.copy_(torch.arange(96))
            getattr(module, "reset_parameters", lambda: None)()

        engine = zero.fully_shard(meta(lambda: Table(torch.int64)), configuration(3), init=init)
        self.engines.append(engine)
        self.assertEqual(engine.state_dict()["blocks.1.table"].tolist(), list(range(96)))

    def test_a_model_on_another_device(self):
        """Its first values come to the CPU, where the engine reads them."""

        class Elsewhere(torch.Tensor):
            def to(self, *place, **more):
                return self.as_subclass(torch.Tensor).to(*place, **more)

            def data_ptr(self):
                raise AssertionError("an address of another device")

        model = made("mlp")
        for module in model.modules():
            module._parameters = {name: torch.nn.Parameter(p.detach().as_subclass(Elsewhere)) for name, p in module._parameters.items()}
        values = zero._weights.first_values(model, None, 0, {})
        for name, p in made("mlp").named_parameters():
            leaf = Leaf(name, "", model.get_parameter(name), frozenset())
            self.assertEqual(values(leaf).data_ptr() % 4, 0)
            self.assertTrue(torch.equal(values(leaf), p.detach().view(-1)))

    def test_schedulers(self):
        data = [(torch.randn(96, generator=torch.Generator().manual_seed(i)), i % 10) for i in range(16)]
        engine = self.engine(made("mlp"), 2, ["Block"])
        scheduler = torch.optim.lr_scheduler.StepLR(engine.optimizer, 1, 0.5)
        rates = []
        for x, y in torch.utils.data.DataLoader(data, batch_size=engine.micro_batch):
            loss = torch.nn.functional.cross_entropy(engine(x), y)
            engine.backward(loss)
            rates.append(engine.step().lr)
            scheduler.step()
        self.assertEqual(rates, [1e-3, 5e-4, 2.5e-4, 1.25e-4])
        schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 4, "warmup_type": "linear"}}
        engine = self.engine(made("mlp"), scheduler=schedule)
        rates = []
        for step in range(6):
            engine.backward(loss_of_vectors(engine.model, step))
            rates.append(engine.step().lr)
            self.assertEqual(engine.optimizer.param_groups[0]["lr"], rates[-1])
        self.assertEqual(rates[-1], 1e-3)

    def test_reports(self):
        model = made("mlp")
        engine = zero.fully_shard(model, configuration(3, trace={"first_step": 1, "steps": 2}))
        self.engines.append(engine)
        self.assertEqual(engine.plan()["params"], sum(p.numel() for p in model.parameters()))
        for tier, name, planned, measured in engine.memory():
            self.assertEqual(planned, measured, (tier, name))
        self.train(engine)
        engine.trace(self.path / "trace.json")
        self.assertIn("GATHER", (self.path / "trace.json").read_text().upper())
        self.assertEqual(engine.setting("zero_optimization.stage"), "3")
        self.assertIsNone(engine.setting("nothere"))


if __name__ == "__main__":
    unittest.main()
