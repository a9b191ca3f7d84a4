"""A step of as many micro-steps as the program says: boundaries, what comes between micro-steps, whole gradients."""

import os
import tempfile
import unittest

import torch
from models import configuration, loss_of_tokens, loss_of_vectors, made
from modules_test import Case
from two import TwoRanks

import zero

BY_PROGRAM = {"gradient_accumulation_by_program": True}
MICROS = (3, 1, 4, 2)
MODES = ("last", "every")


class Plain:
    """PyTorch's own loop, over the batches of all ranks: the sum of micro-steps divided by `divisor`, the mean over ranks."""

    def __init__(self, ranks=1, divisor=1, clip=1.0):
        self.model, self.ranks, self.divisor, self.clip = made("mlp"), ranks, divisor, clip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def backward(self, number):
        for rank in range(self.ranks):
            (loss_of_vectors(self.model, number, rank) / self.ranks / self.divisor).backward()

    def step(self):
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm.item()


def check_weights(engine, plain):
    for (name, value), other in zip(engine.state_dict().items(), plain.model.state_dict().values()):
        torch.testing.assert_close(value, other, rtol=0, atol=1e-5, msg=lambda m: f"{name}: {m}")


def train(engine, plain, rank=0, between=None):
    """Steps of MICROS micro-steps, beside plain PyTorch's."""
    number = 0
    for micros in MICROS:
        for micro in range(micros):
            if micro and between:
                between(engine)
            engine.backward(loss_of_vectors(engine.model, number, rank))
            plain.backward(number)
            number += 1
            info = engine.step(last=micro == micros - 1)
            assert info.updated == (micro == micros - 1)
        assert abs(info.grad_norm - plain.step()) < 2e-6, (info.grad_norm, micros)
    assert engine.steps == len(MICROS)
    check_weights(engine, plain)
    return engine.hash()


def look(engine):
    """Reads, saves, writes and evaluates between two micro-steps: no bit changes, and nothing of the step is dropped."""
    before = engine.hash()
    with engine.full_parameters(writeback=True):
        pass
    with torch.no_grad():
        loss_of_vectors(engine.model, 77)
    engine.save(os.path.join(PLACE, "between"))
    engine.save_pretrained(os.path.join(PLACE, "files"))
    engine.load_state_dict(engine.state_dict())
    assert engine.hash() == before


def check_gradients(engine, plain, rank=0, micros=3):
    for number in range(micros):
        engine.backward(loss_of_vectors(engine.model, number, rank))
        plain.backward(number)
    for name, p in plain.model.named_parameters():
        torch.testing.assert_close(engine.gradient(name), p.grad, rtol=0, atol=2e-6)
    assert torch.equal(engine.gradient(engine.model.head.bias), engine.gradient("head.bias"))
    assert abs(engine.step(last=True).grad_norm - plain.step()) < 2e-6
    check_weights(engine, plain)


PLACE = tempfile.mkdtemp()


def on_two_ranks():
    rank = int(os.environ["RANK"])
    for mode in MODES:
        hashes = set()
        for stage, between in ((0, look), (1, None), (2, None), (3, look)):
            config = configuration(stage, gradient_accumulation_mode=mode, **BY_PROGRAM)
            engine = zero.fully_shard(made("mlp"), config)
            hashes.add(train(engine, Plain(2), rank, between))
            engine.close()
            engine = zero.fully_shard(made("mlp"), config | {"gradient_accumulation_steps": 2, "gradient_clipping": 1e-2})
            check_gradients(engine, Plain(2, 2, 1e-2), rank)
            engine.close()
        assert len(hashes) == 1, (mode, hashes)


class Steps(Case):
    def test_any_number(self):
        for mode in MODES:
            hashes = set()
            for stage, between in ((0, look), (1, None), (2, look), (3, None)):
                with self.subTest(mode=mode, stage=stage):
                    engine = self.engine(made("mlp"), stage, gradient_accumulation_mode=mode, **BY_PROGRAM)
                    hashes.add(train(engine, Plain(), between=between))
            self.assertEqual(len(hashes), 1)

    def test_any_number_in_free_order(self):
        engine = self.engine(made("mlp"), 3, free_order=1, **BY_PROGRAM)
        train(engine, Plain(), between=look)

    def test_on_two_ranks(self):
        class Both(TwoRanks):
            def runTest(self):
                self.assertBoth(on_two_ranks)

        Both().debug()

    def test_no_sync(self):
        """As under DistributedDataParallel: the loop calls step() on every micro-step."""
        engine, plain = self.engine(made("mlp"), 2, gradient_accumulation_steps=2), Plain(divisor=2)
        for step in range(3):
            with engine.no_sync():
                for micro in range(2):
                    engine.backward(loss_of_vectors(engine.model, 2 * step + micro))
                    plain.backward(2 * step + micro)
                    self.assertFalse(engine.step().updated)
            self.assertTrue(engine.step().updated)
            plain.step()
        check_weights(engine, plain)

    def test_counted(self):
        """Without the key, the configuration's number; fewer if the program says so; more are refused."""
        engine, plain = self.engine(made("mlp"), 1, gradient_accumulation_steps=3), Plain(divisor=3)
        for number, last in enumerate((None, True)):
            engine.backward(loss_of_vectors(engine.model, number))
            plain.backward(number)
            self.assertEqual(engine.step(last=last).updated, last is True)
        plain.step()
        check_weights(engine, plain)
        for number in range(3):
            engine.backward(loss_of_vectors(engine.model, number))
        self.assertFalse(engine.step(last=False).updated)
        with self.assertRaisesRegex(zero.ZeroError, "gradient_accumulation_by_program"):
            engine.model(torch.zeros(1, 96))

    def test_gradients(self):
        for stage in range(4):
            for mode in MODES:
                engine = self.engine(
                    made("mlp"), stage, gradient_accumulation_mode=mode, gradient_clipping=1e-2, gradient_accumulation_steps=2, **BY_PROGRAM
                )
                check_gradients(engine, Plain(1, 2, 1e-2))

    def test_moments_of_gradients(self):
        engine = self.mlp(gradient_accumulation_steps=2)
        engine.backward(loss_of_vectors(engine.model, 0))
        with self.assertRaisesRegex(zero.ZeroError, "complete only between the last backward of a step and zero_engine_step"):
            engine.gradient("head.bias")
        with self.assertRaisesRegex(zero.ZeroError, "has no parameter 'nothing': give a name of model.named_parameters"):
            engine.gradient("nothing")
        free = self.mlp(**BY_PROGRAM)
        free.backward(loss_of_vectors(free.model, 0))
        free.gradient("head.bias")
        with self.assertRaisesRegex(zero.ZeroError, "gradients of this step were read, which ends its micro-steps.*call zero_engine_step"):
            free.backward(loss_of_vectors(free.model, 1))
        self.assertTrue(free.step(last=True).updated)

    def test_zero_grad_drops_all(self):
        engine, plain = self.engine(made("mlp"), 3, **BY_PROGRAM), Plain()
        for number in range(5):
            engine.backward(loss_of_vectors(engine.model, number))
            look(engine)
        engine.optimizer.zero_grad()
        self.assertFalse(engine.step(last=True).updated)
        train(engine, plain)

    def test_save_while_accumulating(self):
        """A checkpoint has the state after the last step, from which the step begins anew."""
        engine = self.engine(made("mlp"), 3, **BY_PROGRAM)
        train(engine, Plain())
        hash = engine.hash()
        engine.backward(loss_of_vectors(engine.model, 50))
        with tempfile.TemporaryDirectory() as place:
            engine.save(place)
            other = self.engine(made("mlp"), 1, **BY_PROGRAM)
            other.load(place)
        self.assertEqual((other.hash(), other.steps, other.samples), (hash, engine.steps, engine.samples))
        for each in (engine, other):
            for number in (50, 51)[each is engine :]:
                each.backward(loss_of_vectors(each.model, number))
            each.step(last=True)
        self.assertEqual(other.hash(), engine.hash())

    def test_lm_between(self):
        """A held unit (the tied head), in bf16, on the drive."""
        drive = {"device": "nvme", "nvme_path": PLACE}
        hashes = set()
        for zero_optimization in ({"stage": 0}, {"stage": 3, "offload_optimizer": drive, "offload_param": drive}):
            for between in (False, True):
                config = {"zero_optimization": zero_optimization, "gradient_accumulation_mode": "every", "bf16": {"enabled": True}}
                engine = self.engine(made("tied_head"), zero_optimization["stage"], **config, **BY_PROGRAM)
                for number in range(5):
                    engine.backward(loss_of_tokens(engine.model, number))
                    if between:
                        engine.hash(), engine.state_dict()
                    engine.step(last=number % 2 == 0)
                hashes.add(engine.hash())
        self.assertEqual(len(hashes), 1)


if __name__ == "__main__":
    unittest.main()
