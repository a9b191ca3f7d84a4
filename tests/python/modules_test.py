"""What PyTorch programs do with a model beside the plain loop: every case trains as plain PyTorch does."""

import copy
import dataclasses
import gc
import itertools
import os
import random
import shutil
import threading
import types
import unittest
import warnings
import weakref
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TEST_TMPDIR", ".") + "/inductor"}
import numpy
import torch
import torch.nn.functional as F
from models import KINDS, MLP, Block, Kind, configuration, loss_of_vectors, made, plain_losses, vectors
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import zero

STEPS = 4
HEADERS = Path(torch.__file__).with_name("include") / "ATen/NumericUtils.h"


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.engines: list[zero.Engine] = []
        torch.set_num_threads(1)

    def tearDown(self) -> None:
        for engine in self.engines:
            engine.close()

    def engine(self, model, stage=3, units=None, free_order=False, **config):
        engine = zero.fully_shard(model, configuration(stage, **config), units, free_order=free_order)
        self.engines.append(engine)
        return engine

    def train(self, engine, steps=range(STEPS), loss=loss_of_vectors):
        losses = []
        for step in steps:
            value = loss(engine.model, step)
            engine.backward(value)
            engine.step()
            losses.append(value.item())
        return losses

    def assertLosses(self, losses, expected, tolerance=2e-6):
        self.assertEqual(len(losses), len(expected))
        for a, b in zip(losses, expected):
            self.assertAlmostEqual(a, b, delta=tolerance)

    def mlp(self, **options):
        return self.engine(made("mlp"), **options)


class Passes(Case):
    expected = [row[0] for row in plain_losses("mlp", STEPS)]

    def test_exception_in_forward(self):
        engine = self.mlp()
        model = engine.model
        for error in (ValueError, KeyboardInterrupt):
            fail = model.blocks[1].b.register_forward_hook(lambda *_: (_ for _ in ()).throw(error("bad batch")))
            with self.assertRaises(error):
                model(vectors(0)[0])
            fail.remove()
        self.assertLosses(self.train(engine), self.expected)

    def test_exception_in_evaluation_and_before_any_unit(self):
        engine = self.mlp()
        model = engine.model
        loss = loss_of_vectors(model, 0)
        fail = model.blocks[1].b.register_forward_hook(lambda *_: (_ for _ in ()).throw(ValueError("bad batch")))
        with self.assertRaises(ValueError), torch.no_grad():
            model(vectors(1)[0])
        fail.remove()
        with self.assertRaises(TypeError):  # the forward has no such argument
            with torch.no_grad():
                model(no=1)
        engine.backward(loss)
        engine.step()
        self.assertLosses([loss.item(), *self.train(engine, range(1, STEPS))], self.expected)

    def test_exception_in_backward(self):
        engine = self.mlp()

        def fail(grad):
            raise ValueError("bad gradient")

        hook = engine.model.blocks[1].b.register_forward_hook(lambda module, args, y: y.register_hook(fail) and None)
        with self.assertRaises(ValueError):
            engine.backward(loss_of_vectors(engine.model, 0))
        with self.assertRaisesRegex(zero.ZeroError, "ended with an exception"):
            engine.step()
        hook.remove()
        self.assertLosses(self.train(engine), self.expected)

    def test_exception_in_the_second_micro_step(self):
        """In its forward: the first one stays. In its backward: both are dropped, and `step` says so."""
        engine = self.mlp(gradient_accumulation_steps=2)

        def fail(*_):
            raise ValueError("bad batch")

        def fails(hook, sentence):
            handle = engine.model.blocks[1].b.register_forward_hook(hook)
            with self.assertRaises(ValueError):
                engine.backward(loss_of_vectors(engine.model, 1))
            handle.remove()
            with self.assertRaisesRegex(zero.ZeroError, sentence):
                engine.step()

        losses = self.train(engine, [0])
        fails(lambda module, args, y: y.register_hook(fail) and None, "all micro-steps .* repeat them")
        self.assertEqual(self.train(engine, [0]), losses)
        fails(fail, "repeat it")
        losses += self.train(engine, range(1, 2 * STEPS))
        self.assertLosses(losses, sum(plain_losses("mlp", STEPS, micro=2), []))

    def test_close_after_an_exception(self):
        """The parameters of the unit that was open are guarded, too: their memory is gone."""
        engine = self.mlp()
        engine.commit()
        weight = engine.model.blocks[1].b.weight
        engine.model.blocks[1].b.register_forward_hook(lambda *_: (_ for _ in ()).throw(ValueError("bad batch")))
        with self.assertRaises(ValueError):
            engine.model(vectors(0)[0])
        engine.close()
        with self.assertRaisesRegex(RuntimeError, r"blocks\.1\.b\.weight: its engine is closed"):
            weight.sum()

    def test_evaluation_anywhere(self):
        for name in ("mlp", "tied_head", "own_parameter"):
            for stage in (1, 3):
                kind = KINDS[name]
                engine = self.engine(made(name), stage)
                losses = []
                for step in range(STEPS):
                    with torch.no_grad():
                        kind.loss(engine.model, 7)
                    loss = kind.loss(engine.model, step)
                    with torch.no_grad():
                        kind.loss(engine.model, 8)
                        kind.loss(engine.model, 9)
                    engine.backward(loss)
                    with torch.inference_mode():
                        kind.loss(engine.model, 10)
                    engine.step()
                    losses.append(loss.item())
                self.assertLosses(losses, [row[0] for row in plain_losses(name, STEPS)])

    def test_evaluation_with_gradients(self):
        """A forward whose result is dropped is none."""
        engine = self.mlp()
        losses = []
        for step in range(STEPS):
            loss_of_vectors(engine.model, 7)
            loss = loss_of_vectors(engine.model, step)
            losses.append(loss.item())
            loss.backward()  # not the engine's
            engine.step()
            loss_of_vectors(engine.model, 8)
        self.assertLosses(losses, self.expected)

    def test_a_loss_of_no_unit(self):
        """It counts as a micro-step whose gradient is zero, also after an evaluation, and the next one works."""
        for free in (False, True):
            for accumulation in (1, 2):
                for evaluates in (False, True):
                    engine = self.mlp(free_order=free, gradient_accumulation_steps=accumulation)
                    plain = self.mlp(free_order=free)
                    for step in range(STEPS):
                        output = engine.model(vectors(step)[0])
                        if evaluates:
                            with torch.no_grad():
                                loss_of_vectors(engine.model, 9)
                        if step:
                            output = None
                        engine.backward(torch.zeros((), requires_grad=True))
                        del output
                        info = engine.step()
                        self.assertEqual((info.updated, info.grad_norm), (True, 0) if accumulation == 1 else (False, info.grad_norm))
                        engine.backward(loss_of_vectors(engine.model, step))
                        norm = engine.step().grad_norm
                        with torch.no_grad():
                            loss_of_vectors(engine.model, 9)
                        if not step and accumulation == 2:  # the mean of it and of zero
                            plain.backward(loss_of_vectors(plain.model, 0))
                            self.assertAlmostEqual(2 * norm, plain.step().grad_norm, delta=1e-6)

    def test_gradients_of_inputs(self):
        """Those of torch.autograd.grad are an evaluation: no micro-step, and the pass may still have its backward."""

        class Recomputed(MLP):
            def forward(self, x):
                for block in self.blocks:
                    x = checkpoint(block, x, use_reentrant=False)
                return self.head(x)

        kinds = {"mlp": MLP, "own_parameter": KINDS["own_parameter"].make, "recomputed": Recomputed}
        for (name, make), free, accumulation in itertools.product(kinds.items(), (False, True), (1, 2)):
            with self.subTest(name, free=free, accumulation=accumulation):
                torch.manual_seed(0)
                plain = make()
                torch.manual_seed(0)
                engine = self.engine(make(), free_order=free, gradient_accumulation_steps=accumulation)
                optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
                for step in range(6):
                    seen = []
                    for model in (plain, engine.model):
                        x, y = vectors(step)
                        x.requires_grad_()
                        loss = F.cross_entropy(model(x), y)
                        grads = torch.autograd.grad(loss, (x, *model.parameters()), retain_graph=step % 4 == 0)
                        if step % 4:
                            loss = F.cross_entropy(model((x + 0.1 * grads[0].sign()).detach()), y)
                        seen.append((loss.detach(), *grads))
                        # A backward to parameters, named or not, is a micro-step.
                        inputs = [*model.parameters()] if step % 3 == 1 else None
                        engine.backward(loss, inputs=inputs) if model is engine.model else (loss / accumulation).backward()
                    torch.testing.assert_close(*seen, rtol=1e-5, atol=2e-6)
                    self.assertEqual(engine.step().updated, (step + 1) % accumulation == 0)
                    if (step + 1) % accumulation == 0:
                        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
                        optimizer.step()
                        optimizer.zero_grad()
        engine = self.mlp()
        x = vectors(0)[0].requires_grad_()
        fail = engine.model.blocks[1].b.register_full_backward_hook(lambda *_: (_ for _ in ()).throw(ValueError("bad gradient")))
        with self.assertRaises(ValueError):
            torch.autograd.grad(engine.model(x).sum(), x)
        fail.remove()
        self.assertLosses(self.train(engine), self.expected)

    @unittest.skipUnless(hasattr(torch.Tensor, "grad_dtype"), "gradients have the type of their parameters")
    def test_gradients_of_another_type(self):
        """A parameter that takes gradients of any type, or of fp32, gets one in fp32, which has its type when the engine takes it."""

        class Wide(torch.autograd.Function):
            @staticmethod
            def forward(ctx, weight, wide):
                ctx.wide = wide
                return weight.clone()

            @staticmethod
            def backward(ctx, gradient):
                return gradient.float() if ctx.wide else gradient, None

        hashes = set()
        for wide, kind in ((False, None), (True, None), (True, torch.float32)):
            engine = self.mlp(bf16={"enabled": True})
            head = engine.model.head
            engine.commit(vectors(0)[0])
            head.weight.grad_dtype = kind
            head.forward = lambda x, head=head, wide=wide: nn.functional.linear(x, Wide.apply(head.weight, wide), head.bias)
            self.train(engine, [0, 1])
            hashes.add(engine.hash())
        self.assertEqual(len(hashes), 1)

    def test_zero_grad(self):
        """After a backward and before a call of step it drops the step, as in PyTorch; after each call of step it changes nothing."""
        ways = (lambda e: e.optimizer.zero_grad(), lambda e: e.optimizer.zero_grad(False), lambda e: e.model.zero_grad())
        for zero_grad, free, bad in itertools.product(ways, (False, True), (1, 2)):
            with self.subTest(free=free, bad=bad):
                engine = self.mlp(free_order=free, gradient_accumulation_steps=2)
                losses = []
                for step in range(2 * STEPS):
                    for micro in range(bad if step == 2 else 0):
                        engine.backward(loss_of_vectors(engine.model, 90 + micro))
                    if step == 2:
                        zero_grad(engine)
                        self.assertFalse(engine.step().updated)
                        for micro in range(bad):
                            engine.backward(loss_of_vectors(engine.model, 90 + micro))
                        hash = engine.hash()
                        zero_grad(engine)
                        self.assertEqual(engine.hash(), hash)
                    with torch.no_grad():
                        loss_of_vectors(engine.model, 9)
                    losses += self.train(engine, [step])
                    zero_grad(engine)
                self.assertLosses(losses, sum(plain_losses("mlp", STEPS, micro=2), []))
                for _ in range(2):
                    engine.backward(loss_of_vectors(engine.model, 0))
                    self.assertTrue(engine.step(last=True).updated)
                    zero_grad(engine)
                engine.backward(loss_of_vectors(engine.model, 0))
                loss = loss_of_vectors(engine.model, 1)
                zero_grad(engine)
                with self.assertRaisesRegex(zero.ZeroError, r"between a forward and its backward: call zero_grad\(\) before"):
                    engine.backward(loss)

    def test_a_generator_and_its_critic(self):
        """Two engines: the generator's backward leads through the critic, whose gradients the program drops."""
        plain, losses = (made("mlp"), made("mlp")), ([], [])
        engines = self.mlp(), self.mlp()
        optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1) for m in plain]
        for step in range(STEPS):
            x = vectors(step)[0]
            for models, own, seen in ((plain, optimizers, losses[0]), ([e.model for e in engines], [e.optimizer for e in engines], losses[1])):
                made_up = models[0](x).repeat(1, 10)[:, :96]
                for turn in (1, 0):
                    own[turn].zero_grad()
                    loss = models[1](made_up if turn == 0 else made_up.detach()).square().mean() * (-1) ** turn
                    engines[turn].backward(loss) if models is not plain else loss.backward()
                    if models is plain:
                        torch.nn.utils.clip_grad_norm_(models[turn].parameters(), 1.0)
                    own[turn].step()
                    seen.append(loss.item())
        self.assertLosses(losses[1], losses[0])
        for text in ("call engine.step", "engine.optimizer.zero_grad"):
            with self.assertRaisesRegex(zero.ZeroError, text):
                engines[1].model(vectors(0)[0])

    def test_a_model_that_is_frozen_for_a_backward(self):
        """It counts no micro-step: a critic in the generator's turn; and a teacher, which is frozen always."""
        for free in (False, True):
            engine, plain = self.mlp(gradient_accumulation_steps=2, gradient_clipping=0, free_order=free), made("mlp")
            teacher = self.engine(made("mlp").requires_grad_(False))
            engine.commit(vectors(0)[0])
            for step in range(2):
                plain.load_state_dict(engine.state_dict())
                plain.zero_grad()
                for model in (engine.model, plain, teacher.model):
                    x = vectors(step)[0].requires_grad_()
                    model.requires_grad_(False)
                    model(x).square().mean().backward()
                    model.requires_grad_(model is not teacher.model)
                for micro in range(2):
                    engine.backward(loss_of_vectors(engine.model, micro))
                    info = engine.step()
                    (loss_of_vectors(plain, micro) / 2).backward()
                right = nn.utils.get_total_norm([p.grad for p in plain.parameters()]).item()
                self.assertAlmostEqual(info.grad_norm / right, 1, delta=1e-5)
        teacher.model.requires_grad_(True)
        with self.assertRaisesRegex(zero.ZeroError, "parameter .* is to be trained, and was not when it moved to the engine"):
            teacher.backward(loss_of_vectors(teacher.model, 0))

    def test_a_step_without_a_backward(self):
        """It is refused, and the backward may still come."""
        engine = self.mlp()
        losses = []
        for step in range(STEPS):
            loss = loss_of_vectors(engine.model, step)
            with self.assertRaisesRegex(zero.ZeroError, "zero_engine_step"):
                engine.step()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        self.assertLosses(losses, self.expected)

    def test_a_dropped_forward(self):
        """Whatever comes after it, it was never there."""
        for free in (False, True):
            engine = self.mlp(gradient_accumulation_steps=2, free_order=free, ema={"decay": 0.9})
            path = os.path.join(os.environ.get("TEST_TMPDIR", "."), f"dropped{free}")

            def averaged():
                with engine.averaged() as model, torch.no_grad():
                    loss_of_vectors(model, 9)

            calls = (engine.hash, engine.state_dict, averaged, lambda: engine.save(path), lambda: engine.save_pretrained(path), engine.park)
            losses = []
            for step in range(2 * STEPS):
                loss = loss_of_vectors(engine.model, step)
                engine.backward(loss)
                losses.append(loss.item())
                if step % 2 == 0:
                    loss_of_vectors(engine.model, 9)
                self.assertEqual(engine.step().updated, step % 2 == 1)
                for call in calls if step == 3 else ():
                    loss_of_vectors(engine.model, 9)
                    call()
                if step == 3:
                    engine.unpark()
            self.assertLosses(losses, sum(plain_losses("mlp", STEPS, micro=2), []))

    def test_two_forwards_one_backward(self):
        """The later forward drops the pass of the one before, whose result may be there for ever; a backward through that raises."""
        for stage in (0, 3):
            for plain in (False, True):
                engine = self.mlp(stage=stage)
                back = (lambda loss: loss.backward()) if plain else engine.backward
                for chosen in (lambda a, b: a + b, lambda a, b: b + a, lambda a, b: a):
                    loss = chosen(loss_of_vectors(engine.model, 0), loss_of_vectors(engine.model, 1))
                    with self.assertRaisesRegex(zero.ZeroError, "later forward with gradients.* free_order=True"):
                        back(loss)
                kept = loss_of_vectors(engine.model, 2)
                self.assertLosses(self.train(engine), self.expected)
                with self.assertRaisesRegex(zero.ZeroError, "later forward"):
                    back(kept)

    def test_free_order(self):
        """Two forwards and one backward; two backwards of one forward. With at most one unit in use, in less memory."""
        sizes = []
        for free_order in (True, 1):
            plain, engine = made("mlp"), self.mlp(free_order=free_order)
            optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
            for step in range(STEPS):
                expected = (loss_of_vectors(plain, 2 * step) + loss_of_vectors(plain, 2 * step + 1)) / 2
                expected.backward()
                torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                x, y = vectors(2 * step)
                first = F.cross_entropy(engine.model(x.requires_grad_()), y)
                torch.autograd.grad(first, x, retain_graph=True)  # drops nothing of the pass
                loss = (first + loss_of_vectors(engine.model, 2 * step + 1)) / 2
                if step % 2:
                    engine.backward(loss * 0.25, retain_graph=True)
                    engine.backward(loss * 0.75)
                else:
                    engine.backward(loss)
                engine.step()
                self.assertLosses([loss.item()], [expected.item()])
            sizes.append(engine.plan()["gathered_bytes"])
        self.assertGreater(sizes[0], sizes[1])

    def test_accumulation(self):
        engine = self.mlp(gradient_accumulation_steps=2)
        losses, updated = [], []
        for step in range(2 * STEPS):
            loss = loss_of_vectors(engine.model, step)
            engine.backward(loss)
            updated.append(engine.step().updated)
            losses.append(loss.item())
        self.assertEqual(updated, [False, True] * STEPS)
        self.assertLosses(losses, sum(plain_losses("mlp", STEPS, micro=2), []))

    def test_parts_of_a_model(self):
        """Modules that are called without the model itself."""
        engine = self.mlp(stage=3)
        model, losses = engine.model, []
        with self.assertRaisesRegex(zero.ZeroError, "no forward of the model"):
            engine.step()
        engine.commit(vectors(0)[0])
        for step in range(STEPS):
            x, y = vectors(step)
            with torch.no_grad():
                model.blocks[0](x)
            for block in model.blocks:
                x = block(x)
            loss = F.cross_entropy(model.head(x), y)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        self.assertLosses(losses, self.expected)


CALLS = []


def count_call(module, args, y):
    CALLS.append(1)


@dataclasses.dataclass(slots=True)
class Result:
    value: object


class Kept(Block):
    """Keeps a loss of its own, an inner tensor, and adds a parameter, for which autograd saves nothing."""

    def __init__(self, width):
        super().__init__(width)
        self.router, self.shift = nn.Linear(width, 4), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        self.balance = self.router(x).softmax(-1).var()
        self.inner = super().forward(x)
        return Result((Result(self.inner + self.shift),))


class Keeper(MLP):
    frozen, again, compiled = (), False, False

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Kept(96) for _ in range(3))
        self.scale = nn.Parameter(torch.tensor(1.5))
        for i in self.frozen:
            self.blocks[i].requires_grad_(False)
        if self.compiled:  # one, which takes seconds
            self.blocks[1].compile(backend="aot_eager")

    def forward(self, x):
        for block in self.blocks:
            x = (checkpoint(block, x, use_reentrant=False) if self.again else block(x)).value[0].value
        self.logits = self.head(x)
        return Result([{"x": self.logits}])


class FrozenKeeper(Keeper):
    frozen = (1,)


class RecomputedKeeper(Keeper):
    again = True


class CompiledKeeper(Keeper):
    compiled = True


def of_result(model, step):
    return F.cross_entropy(model(vectors(step)[0]).value[0]["x"], vectors(step)[1])


def of_inner_tensor(model, step):
    model(vectors(step)[0])
    return model.blocks[1].inner.square().mean()


def of_hidden_logits(model, step):
    model(vectors(step)[0])
    return F.cross_entropy(model.logits * model.scale.exp(), vectors(step)[1])


def with_balance(model, step):
    return of_result(model, step) + sum(block.balance for block in model.blocks)


def of_shift_alone(model, step):
    return 0 * of_result(model, step).detach() + model.scale.exp() * 2 + model.blocks[2].inner.sum() * 0


class Gradients(Case):
    """Gradients are those of plain PyTorch, wherever a loss comes from."""

    def assertTrains(self, make, loss, plainly, evaluates=False, **options):
        torch.manual_seed(0)
        model = make()
        plain = copy.deepcopy(model) if not make.compiled else Keeper()
        plain.load_state_dict(model.state_dict())
        engine = self.engine(model, gradient_clipping=0, **options)
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
        for step in range(2):
            loss(plain, step).backward()
            for p in plain.parameters():
                p.grad = torch.zeros_like(p) if p.grad is None and p.requires_grad else p.grad
            value = loss(engine.model, step)
            if evaluates:
                with torch.no_grad():
                    loss(engine.model, 9)
            value.backward() if plainly else engine.backward(value)
            right = nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None]).item()
            self.assertAlmostEqual(engine.step().grad_norm / right, 1, delta=1e-5)
            optimizer.step()
            optimizer.zero_grad()
        for name, value in engine.state_dict().items():
            torch.testing.assert_close(value, plain.state_dict()[name], rtol=0, atol=2e-5)

    def test_any_loss(self):
        kinds = (of_result, of_inner_tensor, of_hidden_logits, with_balance, of_shift_alone)
        for loss, stage, free in itertools.product(kinds, (0, 3), (False, True)):
            plainly = free == (stage == 3)  # every pair of the three
            with self.subTest(loss.__name__, stage=stage, free=free, plainly=plainly):
                self.assertTrains(Keeper, loss, plainly, stage=stage, free_order=free)

    def test_any_module(self):
        for make, loss, evaluates in itertools.product(
            (FrozenKeeper, RecomputedKeeper, CompiledKeeper), (of_result, with_balance), (False, True)
        ):
            if make is CompiledKeeper and loss is of_result:
                continue  # to compile takes seconds, and the other loss has this one as a part
            with self.subTest(make.__name__, loss=loss.__name__, evaluates=evaluates):
                self.assertTrains(make, loss, False, evaluates)

    def test_a_backward_that_reads_nothing(self):
        """Of a parameter alone: engine.backward begins the pass, and loss.backward() is not seen."""
        engine = self.engine(Keeper())
        engine.model(vectors(0)[0])
        (engine.model.scale * 2).backward()
        with self.assertRaisesRegex(zero.ZeroError, r"parameter scale by a backward .* call engine.backward\(loss\)"):
            engine.step()
        engine.optimizer.zero_grad()
        engine.model(vectors(0)[0])
        engine.backward(engine.model.scale * 2)
        self.assertEqual(engine.step().grad_norm, 2)

    def test_a_change_in_place(self):
        """Of a tensor that autograd has saved: it raises, as in plain PyTorch."""

        class Changes(Block):
            def forward(self, x):
                y = torch.sigmoid(self.a(x))
                z = self.b(y)
                y.mul_(2)
                return z

        engine = self.engine(nn.Sequential(nn.Sequential(Changes(96), Changes(96)), nn.Linear(96, 10)))
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            engine.backward(loss_of_vectors(engine.model, 0))

    def test_an_exception_anywhere_in_a_backward(self):
        """It drops the step. The next one has the gradient of plain PyTorch."""

        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                raise MemoryError

        def in_a_parameter_hook(model, step):
            hook = model.blocks[0].a.bias.register_hook(lambda grad: (_ for _ in ()).throw(MemoryError))
            model.head.register_forward_pre_hook(lambda *_: hook.remove() if model.repeats else None)
            return of_result(model, step)

        places = {
            "before any node": lambda model, step: Fails.apply(of_result(model, step)),
            "in a block": lambda model, step: of_result(model, step) + Fails.apply(model.blocks[1].inner).sum(),
            "of a parameter": in_a_parameter_hook,
            "after all units": lambda model, step: of_result(model, step) + Fails.apply(model.scale) * 0,
        }
        for (place, fails), make, free in itertools.product(places.items(), (Keeper, RecomputedKeeper), (False, True)):
            if make is RecomputedKeeper and free and torch.__version__ < (2, 8):
                continue  # this PyTorch does not tell a checkpoint's hooks, and results are hidden: it raises
            with self.subTest(place, make=make.__name__, free=free):
                torch.manual_seed(0)
                engine = self.engine(make(), free_order=free, gradient_accumulation_steps=2, gradient_clipping=0)
                norms = []
                for attempt in ("before", "fails", "repeats"):
                    engine.model.repeats = attempt == "repeats"
                    engine.backward(of_result(engine.model, 0))
                    if attempt == "fails":
                        with self.assertRaises(MemoryError):
                            engine.backward(fails(engine.model, 1))
                        continue
                    engine.backward(of_result(engine.model, 1))
                    norms.append(engine.step().grad_norm)
                    if attempt == "before":
                        weights = engine.state_dict()
                    else:
                        engine.load_state_dict(weights)
                plain = make()
                plain.load_state_dict(weights)
                for step in range(2):
                    (of_result(plain, step) / 2).backward()
                right = nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None]).item()
                self.assertAlmostEqual(norms[1] / right, 1, delta=1e-5)


class Modules(Case):
    def test_module_inside_of_itself(self):
        """A call inside of one of the same module is a part of it, also in a checkpoint, and beside other calls."""

        class Again(Block):
            def forward(self, x, more=2):
                y = super().forward(x)
                return self(y, more - 1) if more else y

        class Model(MLP):
            def __init__(self):
                super().__init__()
                self.blocks = nn.ModuleList(Again(96) for _ in range(2))

            def forward(self, x):
                x = self.blocks[0](self.blocks[0](x))
                return self.head(checkpoint(self.blocks[1], x, use_reentrant=False))

        for free in (False, True):
            torch.manual_seed(0)
            plain = Model()
            model = copy.deepcopy(plain)
            engine = self.engine(model, free_order=free, gradient_clipping=0)
            model(vectors(0)[0])
            loss_of_vectors(plain, 0).backward()
            engine.backward(loss_of_vectors(model, 0))
            engine.step()
            optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
            optimizer.step()
            for name, value in engine.state_dict().items():
                self.assertTrue(torch.allclose(value, plain.state_dict()[name], atol=1e-6), name)

    def test_frozen(self):
        for frozen in (["blocks.0", "blocks.1"], ["blocks.1", "head"], ["blocks.0.a", "blocks.2.b"]):
            plain, model = made("mlp"), made("mlp")
            for m in (plain, model):
                for name in frozen:
                    m.get_submodule(name).requires_grad_(False)
            weights = [p for p in plain.parameters() if p.requires_grad]
            optimizer = torch.optim.AdamW(weights, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
            expected = []
            for step in range(STEPS):
                loss = loss_of_vectors(plain, step)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(weights, 1.0)
                optimizer.step()
                optimizer.zero_grad()
                expected.append(loss.item())
            self.assertLosses(self.train(self.engine(model)), expected)

    def test_muon(self):
        """torch.optim.Muon's formulas in double for matrices, its AdamW for vectors."""
        lr, decay, mu = 0.02, 0.1, 0.95
        groups = [{"match": ["*.bias"], "optimizer": "AdamW", "lr": 1e-3, "betas": [0.9, 0.95]}]
        optimizer = {"type": "Muon", "params": {"lr": lr, "weight_decay": decay, "momentum": mu}}
        losses = self.train(self.mlp(optimizer=optimizer, param_groups=groups))
        plain = made("mlp")
        matrices = [p for p in plain.parameters() if p.dim() == 2]
        weights, momenta = [p.detach().double() for p in matrices], [torch.zeros_like(p, dtype=torch.double) for p in matrices]
        vectors_alone = [p for p in plain.parameters() if p.dim() != 2]
        rest = torch.optim.AdamW(vectors_alone, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01)
        expected = []
        for step in range(STEPS):
            loss = loss_of_vectors(plain, step)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            rest.step()
            for p, w, m in zip(matrices, weights, momenta):
                g = p.grad.double()
                m.mul_(mu).add_((1 - mu) * g)
                x = mu * m + (1 - mu) * g
                x = (x.T if x.size(0) > x.size(1) else x) / max(x.norm().item(), 1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                x = (x.T if w.size(0) > w.size(1) else x) * max(1, w.size(0) / w.size(1)) ** 0.5
                w.mul_(1 - lr * decay).sub_(lr * x)
                p.data.copy_(w)
            plain.zero_grad()
            expected.append(loss.item())
        self.assertLosses(losses, expected)

    def test_frozen_by_the_configuration(self):
        engine = self.mlp(param_groups=[{"match": "blocks.0.*", "frozen": True}])
        before = engine.state_dict()
        self.train(engine)
        after = engine.state_dict()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        self.assertEqual(changed, {name for name in before if not name.startswith("blocks.0.")})

    def test_a_parameter_without_dimensions(self):
        class Scaled(MLP):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.tensor(1.5))

            def forward(self, x):
                return super().forward(x) * self.scale

        for free_order in (False, True):
            torch.manual_seed(0)
            engine = self.engine(Scaled(), free_order=free_order)
            torch.manual_seed(0)
            plain = Scaled()
            optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
            for step in range(STEPS):
                expected = loss_of_vectors(plain, step)
                expected.backward()
                torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                self.assertLosses(self.train(engine, [step]), [expected.item()])
            torch.testing.assert_close(engine.state_dict()["scale"], plain.scale.detach())

    def test_what_a_forward_keeps(self):
        """The forward that finds the order of units leaves nothing in the modules: no tensors without data, and no counts."""

        class Keeps(MLP):
            def __init__(self, by_data):
                super().__init__()
                self.by_data, self.calls, self.scale, self.tables, self.seen = by_data, 0, None, {}, []

            def forward(self, x):
                self.calls += 1
                self.seen.append(x.shape)
                if self.scale is None:
                    self.scale, self.tables["bias"] = torch.full((96,), 1.0), torch.zeros(96)
                    self.register_buffer("ones", torch.ones(96), persistent=False)
                if self.by_data:
                    assert x.sum().item() != 0
                return super().forward(x * self.scale * self.ones + self.tables["bias"])

        for by_data in (False, True):
            torch.manual_seed(0)
            engine = self.engine(Keeps(by_data))
            self.assertLosses(self.train(engine), [row[0] for row in plain_losses("mlp", STEPS)])
            model = engine.model
            self.assertEqual([type(t) for t in (model.scale, model.ones, model.tables["bias"])], [torch.Tensor] * 3)
            self.assertEqual((model.calls, len(model.seen)), (STEPS, STEPS))
            self.assertNotIn("ones", model.state_dict())

    def test_what_the_program_holds(self):
        """The forward that finds the order of units sees copies: arguments, hooks and what they write to, counters of operations."""

        class Cache:
            def __init__(self):
                self.seen, self.sum = [], torch.zeros(96)

        class Takes(MLP):
            def __init__(self, by_data):
                super().__init__()
                self.by_data, self.lock, self.hooked = by_data, threading.Lock(), False

            def forward(self, x, cache, generator):
                if self.by_data:
                    assert x.sum().item() != 0
                with self.lock:
                    cache.seen.append(x.shape)
                cache.sum += x.sum(0)
                if not self.hooked:
                    self.hooked = True
                    self.blocks[0].register_forward_hook(lambda module, args, y: y * 2)
                return super().forward(x.mul_(2) + torch.rand(96, generator=generator))

        for by_data in (False, True):
            model, plain = (torch.manual_seed(0) and Takes(by_data) for _ in range(2))
            seen, calls, method = [], Cache(), Cache()
            method.hook = types.MethodType(lambda self, module, args: self.seen.append(1), method)
            model.blocks[1].register_forward_hook(lambda module, args, y: seen.append(y) or calls.seen.append(1))
            model.blocks[1].register_forward_hook(count_call)
            model.blocks[2].register_forward_pre_hook(method.hook)
            plain_cache, cache = Cache(), Cache()
            before = len(CALLS)
            with FlopCounterMode(display=False) as flops:
                got = self.engine(model).model(vectors(0)[0], cache, torch.Generator().manual_seed(1))
            counts = len(seen), len(calls.seen), len(CALLS) - before, len(method.seen)
            with FlopCounterMode(display=False) as plain_flops:
                expected = plain(vectors(0)[0], plain_cache, torch.Generator().manual_seed(1))
            torch.testing.assert_close(got, expected)
            torch.testing.assert_close(cache.sum, plain_cache.sum)
            self.assertEqual((counts, type(seen[0]), cache.seen), ((1, 1, 1, 1), torch.Tensor, plain_cache.seen))
            self.assertEqual(flops.get_total_flops(), plain_flops.get_total_flops())
            self.assertEqual([len(block._forward_hooks) for block in model.blocks], [2, 3, 1])  # one is the engine's

    def test_what_is_freed(self):
        """No activations of the first forward stay, whatever they depend on, nor those of a forward whose result is dropped."""

        class ByData(MLP):
            def forward(self, x):
                assert x.sum().item() != 0
                return super().forward(x)

        for make in (MLP, ByData):
            engine, held = self.engine(make()), []
            gc.disable()
            try:
                engine.model.blocks[1].register_forward_hook(lambda module, args, y: held.append(weakref.ref(y.untyped_storage())) and None)
                for _ in range(2):
                    engine.model(vectors(0)[0])
                self.assertEqual([storage() for storage in held], [None] * 2)
            finally:
                gc.enable()

    def test_random_numbers(self):
        """The forward that finds the order of units leaves the generators as they were."""

        class Draws(MLP):
            def forward(self, x):
                self.drawn = draw()
                return super().forward(x)

        draw = lambda: [random.random(), numpy.random.rand(), torch.rand([]).item()]
        drawn = []
        for call in (lambda: drawn.append(draw()), lambda: drawn.append((engine.model(vectors(0)[0]), engine.model.drawn)[1])):
            engine = self.engine(Draws())
            for seed in (random.seed, numpy.random.seed, torch.manual_seed):
                seed(1)
            call()
        self.assertEqual(*drawn)

    def test_parameters_of_integers(self):
        """They stay the model's own, also where a function uses them."""

        class Permuted(MLP):
            def __init__(self):
                super().__init__()
                self.order = nn.Parameter(torch.arange(95, -1, -1), requires_grad=False)

            def forward(self, x):
                return super().forward(x[:, self.order])

        torch.manual_seed(0)
        engine = self.engine(Permuted())
        self.train(engine)
        self.assertEqual(engine.model.order[0].item(), 95)
        self.assertEqual(engine.state_dict()["order"][0].item(), 95)

    def test_unused_beside_units(self):
        """A parameter of the model itself, which the first forward leaves out and a later one uses."""

        class Masked(MLP):
            def __init__(self):
                super().__init__()
                self.mask, self.masks = nn.Parameter(torch.ones(96)), False

            def forward(self, x):
                return super().forward(x * self.mask if self.masks else x)

        for free_order in (False, True):
            torch.manual_seed(0)
            engine = self.engine(Masked(), free_order=free_order)
            with self.assertWarnsRegex(UserWarning, "no gradient came for mask"):
                self.assertLosses(self.train(engine), [row[0] for row in plain_losses("mlp", STEPS)])
            before = engine.state_dict()["mask"]
            engine.model.masks = True
            self.train(engine)
            self.assertFalse(torch.equal(engine.state_dict()["mask"], before))

    def test_checkpointing(self):
        """Recomputed blocks, reentrant or not, and a part inside of a block."""

        class Inside(Block):
            def forward(self, x):
                return x + self.b(checkpoint(lambda y: F.relu(self.a(y)), x, use_reentrant=self.reentrant))

        class Around(MLP):
            def forward(self, x):
                for block in self.blocks:
                    x = checkpoint(block, x, use_reentrant=self.reentrant)
                return checkpoint(self.head, x, use_reentrant=self.reentrant)  # then no parameter is in the outer graph

        expected = [row[0] for row in plain_losses("mlp", STEPS)]
        for kind in (Inside, Around):
            for reentrant in (False, True):
                for free in (False, True):
                    torch.manual_seed(0)
                    model = MLP() if kind is Inside else Around()
                    model.reentrant = reentrant
                    for block in model.blocks:
                        block.reentrant = reentrant
                        block.__class__ = Inside if kind is Inside else Block
                    engine = self.engine(model, units=[Block], free_order=free)
                    # The first block's input needs a gradient: a reentrant checkpoint asks for it.
                    loss = lambda m, step: F.cross_entropy(m(vectors(step)[0].requires_grad_()), vectors(step)[1])
                    self.assertLosses(self.train(engine, loss=loss), expected)

    def test_checkpoint_over_two_units(self):
        class Pairs(MLP):
            def forward(self, x):
                x = checkpoint(lambda y: self.blocks[1](self.blocks[0](y)), x, use_reentrant=False)
                return self.head(self.blocks[2](x))

        for free_order in (True, 2):
            torch.manual_seed(0)
            engine = self.engine(Pairs(), free_order=free_order)
            self.assertLosses(self.train(engine), [row[0] for row in plain_losses("mlp", STEPS)])
        with self.assertRaisesRegex(zero.ZeroError, r"blocks\.\d is recomputed in a checkpoint .* free_order=True"):
            self.train(self.engine(Pairs()))

    def test_checkpoint_around_the_model(self):
        engine = self.mlp(free_order=True)
        loss = lambda m, step: F.cross_entropy(checkpoint(m, vectors(step)[0], use_reentrant=False), vectors(step)[1])
        self.assertLosses(self.train(engine, loss=loss), [row[0] for row in plain_losses("mlp", STEPS)])

    def test_autocast(self):
        plain, engine = made("mlp"), self.mlp()
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
        for step in range(STEPS):
            with torch.autocast("cpu", torch.bfloat16):
                expected, loss = loss_of_vectors(plain, step), loss_of_vectors(engine.model, step)
            expected.backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            engine.backward(loss)
            engine.step()
            self.assertLosses([loss.item()], [expected.item()])

    def test_micro_steps_in_one_autocast(self):
        """Autocast keeps copies of weights, also those of a forward before."""
        plain, engine = made("mlp"), self.mlp(gradient_accumulation_steps=2)
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
        for step in range(0, 2 * STEPS, 2):
            with torch.autocast("cpu", torch.bfloat16):
                for micro in (step, step + 1):
                    expected, loss = loss_of_vectors(plain, micro), loss_of_vectors(engine.model, micro)
                    (expected / 2).backward()
                    engine.backward(loss)
                    self.assertLosses([loss.item()], [expected.item()])
                engine.step()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    def test_compiled_blocks(self):
        engine = self.mlp()
        for block in engine.model.blocks:
            block.compile(backend="aot_eager")
        self.assertLosses(self.train(engine), [row[0] for row in plain_losses("mlp", STEPS)])

    @patch.dict(KINDS, small=Kind(lambda: MLP(1), loss_of_vectors))  # the compiler takes seconds for each block
    def test_compiled_models(self):
        """In place, and as another module, before and after fully_shard."""
        compiled = lambda model: torch.compile(model, backend="aot_eager")
        for before, after in ((lambda m: m, compiled), (compiled, lambda m: m), (lambda m: m.compile(backend="aot_eager") or m, lambda m: m)):
            torch.compiler.reset()
            model = before(made("small"))
            loss_of_vectors(model, 0)  # a model may have been compiled before it has hooks
            engine = self.engine(model)
            model = after(engine.model)
            losses = self.train(engine, loss=lambda _, step: loss_of_vectors(model, step))
            self.assertLosses(losses, [row[0] for row in plain_losses("small", STEPS)])
        model = compiled(made("small"))  # of the same class, without hooks: the engine's has code of its own
        losses = self.train(self.engine(compiled(made("small"))), loss=lambda m, step: (loss_of_vectors(model, step), loss_of_vectors(m, step))[1])
        self.assertLosses(losses, [row[0] for row in plain_losses("small", STEPS)])

    @unittest.skipUnless(
        shutil.which("g++") and find_spec("setuptools") and HEADERS.exists(), "Inductor needs g++, setuptools and ATen's headers"
    )
    def test_inductor(self):
        engine = self.mlp()
        engine.model.blocks[1].compile()
        with patch("torch._inductor.cpu_vec_isa.valid_vec_isa_list", list):  # g++ tries each for seconds
            self.assertLosses(self.train(engine), [row[0] for row in plain_losses("mlp", STEPS)])

    def test_unused_parameters_are_named_once(self):
        engine = self.engine(made("branches"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.train(engine)
        said = [str(w.message) for w in caught if "no gradient" in str(w.message)]
        self.assertEqual(len(said), 1, said)
        self.assertIn("unused.a.weight", said[0])


class Mistakes(Case):
    def test_what_python_raises_inside_of_a_call(self):
        """A handler of a signal raises while the library asks whether to wait on; the call raises it even if it has ended well."""
        engine = self.mlp()
        engine.commit()
        zero._abi.raised.append(KeyboardInterrupt())
        with self.assertRaises(KeyboardInterrupt):
            engine.hash()
        self.assertEqual(len(engine.hash()), 32)
        zero._abi.raised.append(KeyboardInterrupt())
        with self.assertRaises(KeyboardInterrupt):
            zero._abi.lib.zero_engine_destroy(None)  # it has no status
        zero._abi.raised.append(KeyboardInterrupt())
        with self.assertRaises(KeyboardInterrupt):
            engine.close()
        self.assertEqual(zero._abi.raised, [])

    def test_first_values_that_fail(self):
        """The first exception comes out, and later calls, also of another engine, raise nothing of it."""
        failures, other = [], self.mlp()

        def init(module):
            failures.append(ValueError(f"failure {len(failures) + 1}"))
            raise failures[-1]

        with torch.device("meta"):
            model = made("mlp")
        engine = zero.fully_shard(model, configuration(3), init=init)
        self.engines.append(engine)
        with self.assertRaisesRegex(ValueError, "failure 1$"):
            engine.commit()
        self.assertEqual(len(other.hash()), 32)

    def test_use_outside_of_the_unit(self):
        engine = self.mlp()
        self.train(engine)
        weight = engine.model.blocks[1].a.weight
        for use in (
            lambda: weight.sum(),
            lambda: weight + 1,
            lambda: copy.deepcopy(engine.model),
            lambda: weight.numpy(),
        ):
            with self.assertRaisesRegex(RuntimeError, r"(blocks\.\d)\.a\.weight is used outside .* unit \1\b"):
                with torch.no_grad():
                    use()

    def test_clip_grad_norm(self):
        engine = self.mlp()
        engine.backward(loss_of_vectors(engine.model, 0))
        for look in (
            lambda: torch.nn.utils.clip_grad_norm_(engine.model.parameters(), 1.0),
            lambda: torch.nn.utils.clip_grad_value_(engine.model.parameters(), 1.0),
            lambda: scaler.unscale_(engine.optimizer),
        ):
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(torch.ones(()))
            with self.assertRaisesRegex(RuntimeError, "gradient_clipping"):
                look()
        engine.step()

    def test_called_more_often(self):
        class Loop(nn.Module):
            def __init__(self):
                super().__init__()
                self.block, self.head, self.times = Block(96), nn.Linear(96, 10), 2

            def forward(self, x):
                for _ in range(self.times):
                    x = self.block(x)
                return self.head(x)

        engine = self.engine(Loop(), units=[Block])
        self.train(engine)
        engine.model.times = 3
        with self.assertRaisesRegex(zero.ZeroError, "block is called more often .* free_order=True"):
            self.train(engine)
        with torch.no_grad():
            loss_of_vectors(engine.model, 0)
        engine.model.times = 1  # fewer
        self.train(engine)

    def test_sentences_of_the_engine(self):
        with self.assertRaisesRegex(zero.ZeroError, "did you mean") as caught:
            self.engine(made("mlp"), train_batch_sise=4)
        self.assertEqual(caught.exception.code, "ZERO_E_CONFIG")

    def test_models_that_no_engine_takes(self):
        with self.assertRaisesRegex(ValueError, "has no parameters"):
            self.engine(nn.ReLU())
        with self.assertRaisesRegex(ValueError, "no module of the model is one of"):
            self.mlp(units=["Blokc"])
        model = made("mlp")
        model.phase = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
        with self.assertRaisesRegex(ValueError, "phase is complex64"):
            self.engine(model).commit()
        for frozen in (False, True):
            model = made("mlp")
            model.scale = nn.Parameter(torch.ones(3, dtype=torch.float64), requires_grad=not frozen)
            with self.assertRaisesRegex(ValueError, r"scale is float64, .* call model\.float\(\) before"):
                self.engine(model).commit()
        for forward in (
            lambda module, args: F.embedding(torch.arange(10), module.weight, max_norm=0.1),
            lambda module, args: module.weight.data.fill_(1.0),
            lambda module, args: module.bias.detach().view(2, -1).add_(args[0].sum().item()),  # by the data
        ):
            for frozen in (False, True):
                model = made("mlp").requires_grad_(not frozen)
                model.head.register_forward_pre_hook(lambda module, args: (torch.no_grad()(forward)(module, args), None)[1])
                with self.assertRaisesRegex(ValueError, r"forward changes parameter head\.(weight|bias) in place, by aten"):
                    self.engine(model).model(vectors(0)[0])
        engine = self.mlp()
        with self.assertRaisesRegex(ValueError, "on an engine already"):
            self.engine(engine.model)

    def test_a_model_that_changes(self):
        """After its first forward: what the engine does not know is not trained in silence."""
        for change, sentence in (
            (lambda m: m.blocks.append(Block(96)), r"blocks\.3\.a\.weight is new"),
            (lambda m: setattr(m.head, "bias", nn.Parameter(torch.zeros(10))), r"head\.bias is new"),
            (lambda m: setattr(m.head.bias, "data", torch.zeros(10)), r"the data of parameter head\.bias are others"),
        ):
            engine = self.mlp()
            self.train(engine, range(1))
            change(engine.model)
            engine.backward(loss_of_vectors(engine.model, 1))
            with self.assertRaisesRegex(zero.ZeroError, sentence):
                engine.step()

    def test_a_closed_engine(self):
        engine = self.mlp()
        engine.backward(loss_of_vectors(engine.model, 0))
        engine.close()
        engine.close()
        for use in (engine.step, engine.hash, engine.optimizer.step, lambda: engine.save("nowhere"), lambda: engine.setting("optimizer")):
            with self.assertRaisesRegex(zero.ZeroError, "the engine is closed"):
                use()
        with self.assertRaisesRegex(RuntimeError, r"a\.(weight|bias): its engine is closed"):
            loss_of_vectors(engine.model, 0)

    def test_first_forward_in_inference_mode(self):
        engine = self.mlp()
        with torch.inference_mode():
            engine.model(torch.ones(4, 96))
        self.assertLosses(self.train(engine), [row[0] for row in plain_losses("mlp", STEPS)])

    def test_gradients_inside_of_the_forward(self):
        class Forces(MLP):
            def forward(self, x):
                x = x.requires_grad_()
                return torch.autograd.grad(super().forward(x).sum(), x)[0]

        torch.manual_seed(0)
        with self.assertRaisesRegex(zero.ZeroError, "autograd.grad is called inside of the model's forward"):
            self.train(self.engine(Forces()))

    def test_a_second_backward(self):
        engine = self.mlp()
        loss = loss_of_vectors(engine.model, 0)
        engine.backward(loss, retain_graph=True)
        with self.assertRaisesRegex(zero.ZeroError, "free_order=True"):
            engine.backward(loss)

    def test_more_units_in_use_than_declared(self):
        class Pairs(MLP):
            def forward(self, x):
                return self.head(checkpoint(lambda y: self.blocks[1](self.blocks[0](y)), x, use_reentrant=False))

        with self.assertRaisesRegex(zero.ZeroError, "free_order"):
            self.train(self.engine(Pairs(), free_order=1))


if __name__ == "__main__":
    unittest.main()
