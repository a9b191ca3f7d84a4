"""Parameters that a program reads and changes outside of forwards: at stages 0 to 2 at all times, at any stage in zero.gathered."""

import copy
import io
import os
import tempfile
import unittest

import torch
import torch.nn.functional as F
from models import configuration, loss_of_tokens, loss_of_vectors, made, tokens, vectors
from modules_test import Case
from torch import nn
from two import TwoRanks

import zero

BF16 = {"bf16": {"enabled": True}}


class Plain:
    """PyTorch's own loop beside the engine's, over the batches of all ranks."""

    def __init__(self, ranks=1):
        self.model, self.ranks = made("mlp"), ranks
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def step(self, number):
        for rank in range(self.ranks):
            (loss_of_vectors(self.model, number, rank) / self.ranks).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def step(engine, number, rank=0):
    loss = loss_of_vectors(engine.model, number, rank)
    engine.backward(loss)
    engine.step()
    return loss.item()


def near(a, b, delta=1e-5):
    torch.testing.assert_close(a, b, rtol=0, atol=delta)


def check_whole(engine, plain, rank=0):
    """What programs do with the parameters of a model of plain PyTorch. `engine` has the weights that `plain` has."""
    model, other = engine.model, plain.model
    average, right = copy.deepcopy(other), copy.deepcopy(other)
    for number in range(3):
        step(engine, number, rank)
        plain.step(number)
        for p, q in zip(model.parameters(), other.parameters()):  # a read
            near(p.norm(), q.norm(), 1e-4)
        with torch.no_grad():
            for own, p in ((average, model), (right, other)):  # an average
                torch._foreach_lerp_(list(own.parameters()), list(p.parameters()), 0.5)
        for p, q in zip(average.parameters(), right.parameters()):
            near(p, q)
        near(F.linear(torch.ones(1, 96), model.head.weight, model.head.bias), other.head(torch.ones(1, 96)), 1e-4)
        near(torch.nn.utils.parameters_to_vector(model.parameters()), torch.nn.utils.parameters_to_vector(other.parameters()))
        state, file = model.state_dict(), io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        for (name, value), (key, q) in zip(torch.load(file, weights_only=True).items(), other.state_dict().items()):
            assert (name, type(value)) == (key, torch.Tensor)
            near(value, q)
        state["head.bias"].add_(1)  # the program's own
        near(model.head.bias, other.head.bias)
        near(torch.from_numpy(model.head.bias.detach().numpy()), other.head.bias.detach())
        whole = copy.deepcopy(model)
        near(whole.blocks[0](torch.ones(2, 96)), other.blocks[0](torch.ones(2, 96)), 1e-4)
        assert {type(p) for p in whole.parameters()} == {nn.Parameter}


def check_gathered(engine, rank=0, ranks=1):
    """Between steps, between forward and backward, between backward and step, nested, around forwards; with changes that last."""
    plain, model = Plain(ranks), engine.model
    engine.commit(vectors(0)[0])
    pairs = list(zip(model.parameters(), plain.model.parameters()))
    for number in range(3):
        with zero.gathered(model):
            for p, q in pairs:
                near(p, q)
                assert type(p.detach().numpy()).__name__ == "ndarray"
            with zero.gathered(model.head), torch.no_grad():
                near(model(vectors(5)[0]), plain.model(vectors(5)[0]), 1e-4)
            near(model.head.weight, plain.model.head.weight)
        loss = loss_of_vectors(model, number, rank)
        with zero.gathered([model.head.weight, model.blocks[1].a.bias]):
            near(model.head.weight, plain.model.head.weight)
            near(model.blocks[1].a.bias, plain.model.blocks[1].a.bias)
        engine.backward(loss)
        with zero.gathered(model.head.bias):
            near(model.head.bias, plain.model.head.bias)
        engine.step()
        plain.step(number)
        for chosen in range(ranks):
            with zero.gathered(model.blocks[2], modify=chosen), torch.no_grad():
                model.blocks[2].a.weight[number].fill_(0.5 + chosen + (rank != chosen))
                model.blocks[2].b.bias.mul_(2 if rank == chosen else 3)
            with torch.no_grad():
                plain.model.blocks[2].a.weight[number].fill_(0.5 + chosen)
                plain.model.blocks[2].b.bias.mul_(2)
        with zero.gathered(model.blocks[2]):
            assert model.blocks[2].a.weight[number, 3].item() == 0.5 + ranks - 1
    for (name, value), q in zip(engine.state_dict().items(), plain.model.state_dict().values()):
        torch.testing.assert_close(value, q, rtol=0, atol=2e-5, msg=lambda m: f"{name}: {m}")
    return engine.hash()


def on_two_ranks():
    rank = int(os.environ["RANK"])
    hashes = set()
    for stage in range(4):
        engine = zero.fully_shard(made("mlp"), configuration(stage))
        if stage < 3:
            check_whole(engine, Plain(2), rank)
            if rank == 0:  # alone
                step_before = engine.model.head.weight.sum().item()
                assert step_before == engine.model.head.weight.sum().item()
            step(engine, 7, rank)
            if rank == 1:
                assert engine.model.head.weight.isfinite().all()
        engine.close()
        engine = zero.fully_shard(made("mlp"), configuration(stage))
        hashes.add(check_gathered(engine, rank, 2))
        engine.close()
    assert len(hashes) == 1, hashes
    check_changed_before(rank)


def check_changed_before(rank):
    """Rank 1 changes parameters that have not moved to the engine yet: that lasts, or is refused."""
    model = made("mlp")
    engine = zero.fully_shard(model, configuration(1))
    refused = "a parameter of shape .* is on no engine yet, which will take rank 0's values in place of those of rank 1"
    with unittest.TestCase().assertRaisesRegex(zero.ZeroError, refused), zero.gathered(model.head, modify=1):
        raise AssertionError("gathered has let this in")
    torch.distributed.init_process_group("gloo", init_method=f"file://{MEETING}", rank=rank, world_size=2)
    with zero.gathered(model.head, modify=1), torch.no_grad():
        model.head.bias.fill_(rank + 2.0)
    moved = "parameters have moved to an engine inside of it, with rank 0's values in place of those of rank 1"
    assert model.head.bias.tolist() == [3.0] * 10
    with unittest.TestCase().assertRaisesRegex(zero.ZeroError, moved), zero.gathered(model.head, modify=1):
        engine.commit(vectors(0)[0])
        engine.hash()
    assert engine.state_dict()["head.bias"].tolist() == [3.0] * 10
    engine.close()
    torch.distributed.destroy_process_group()


MEETING = os.path.join(tempfile.mkdtemp(), "meeting")


class Both(TwoRanks):
    def test_both(self):
        self.assertBoth(on_two_ranks)


class Whole(Case):
    def test_whole_at_all_times(self):
        for stage in range(3):
            with self.subTest(stage=stage):
                check_whole(self.mlp(stage=stage), Plain())

    def test_reads_change_nothing(self):
        """The losses and the hash of a training whose program looks at all moments, or never."""
        hashes = set()
        for looks in (False, True):
            engine = self.engine(made("mlp"), 2, **BF16)
            for number in range(3):
                loss = loss_of_vectors(engine.model, number)
                if looks:
                    [p.sum() for p in engine.model.parameters()]
                engine.backward(loss)
                if looks:
                    engine.model.state_dict()
                engine.step()
                if looks:
                    [p.detach().float() for p in engine.model.parameters()]
            hashes.add(engine.hash())
        self.assertEqual(len(hashes), 1)

    def test_writes_are_refused(self):
        engine = self.mlp(stage=1)
        step(engine, 0)
        head, hash = engine.model.head, engine.hash()
        alias = head.weight.data
        for write in (
            lambda: head.weight.data.clamp_(-0.01, 0.01),
            lambda: alias.zero_(),
            lambda: nn.init.normal_(head.weight),
            lambda: head.weight.detach()[0].fill_(1),
            lambda: torch._foreach_mul_([p.data for p in head.parameters()], 2),
        ):
            with self.assertRaisesRegex(RuntimeError, r"parameter head.weight is changed.*in zero.gathered\(..., modify=0\)"):
                write()
        self.assertEqual(engine.hash(), hash)
        self.assertTrue(torch.equal(alias, head.weight))
        step(engine, 1)
        self.assertTrue(torch.equal(alias, head.weight))

    def test_inside_of_a_forward(self):
        """Of a use of its own; of another one it says so, before a step has ended, and reads it afterwards."""

        class Reads(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
                self.reads = []

            def forward(self, x):
                x = self.a(x)
                with zero.gathered(self.b.weight):
                    x = F.linear(x, self.b.weight)
                with zero.gathered(self.reads):
                    x = x + sum(p.sum() for p in self.reads).detach() * 0 if self.reads else x
                return self.b(x)

        for stage in (1, 3):
            torch.manual_seed(0)
            model = Reads()
            plain = copy.deepcopy(model)
            engine = self.engine(model, stage, [nn.Linear])
            x = torch.ones(2, 8)
            near(model(x), plain(x))
            model.reads = [model.a.weight]
            with self.assertRaisesRegex(zero.ZeroError, "a.weight is not in use at this place of the forward or backward"):
                model(x)
            model.reads = []
            loss = model(x).sum()
            engine.backward(loss)
            engine.step()
            plain(x).sum().backward()

    def test_gathered(self):
        hashes = {check_gathered(self.mlp(stage=stage)) for stage in range(4)}
        self.assertEqual(len(hashes), 1)

    def test_gathered_without_an_engine(self):
        model = made("mlp")
        with zero.gathered(model, modify=0), torch.no_grad():
            model.head.bias.fill_(3)
        self.assertEqual(model.head.bias.sum().item(), 30)
        engine = self.engine(model)  # not committed yet
        with zero.gathered([model.head.bias, nn.Parameter(torch.ones(2))], modify=0), torch.no_grad():
            model.head.bias.fill_(4)
        engine.commit()
        self.assertEqual(engine.state_dict()["head.bias"].sum().item(), 40)

    def test_gathered_over_two_models(self):
        """A target network follows."""
        one, two = self.mlp(stage=3), self.engine(made("own_parameter"), 3)
        for engine in (one, two):
            step(engine, 0)
        with zero.gathered([*one.model.head.parameters(), *two.model.head.parameters()], modify=0), torch.no_grad():
            for p, q in zip(two.model.head.parameters(), one.model.head.parameters()):
                p.copy_(q)
        self.assertTrue(torch.equal(two.state_dict()["head.weight"], one.state_dict()["head.weight"]))

    def test_modify_keeps_other_masters(self):
        """In bf16 the weights of elements that did not change keep all their bits."""
        for stage in (1, 3):
            engine = self.mlp(stage=stage, **BF16)
            step(engine, 0)
            before = engine.state_dict()
            with zero.gathered(engine.model, modify=0), torch.no_grad():
                engine.model.head.weight[2, 5] = 0.125
                self.assertEqual(engine.model.head.weight.dtype, torch.bfloat16)
            after = engine.state_dict()
            before["head.weight"][2, 5] = 0.125
            for name in before:
                self.assertTrue(torch.equal(before[name], after[name]), name)

    def test_an_exception_changes_nothing(self):
        for stage in (1, 3):
            engine = self.mlp(stage=stage)
            step(engine, 0)
            hash = engine.hash()
            with self.assertRaises(KeyError), zero.gathered(engine.model, modify=0):
                engine.model.head.bias.data.fill_(7)
                raise KeyError
            self.assertEqual(engine.hash(), hash)
            with self.assertRaisesRegex(zero.ZeroError, "modify has its place between passes"):
                loss = loss_of_vectors(engine.model, 1)
                with zero.gathered(engine.model, modify=0):
                    pass
            engine.backward(loss)
            engine.step()

    def test_trains_inside(self):
        """A forward and backward use the copies; a step would leave them behind."""
        engine, plain = self.mlp(stage=3), Plain()
        engine.commit(vectors(0)[0])
        for number in range(2):
            with zero.gathered(engine.model.blocks[1]):
                engine.backward(loss_of_vectors(engine.model, number))
                with self.assertRaisesRegex(zero.ZeroError, "a step inside of gathered"):
                    engine.step()
            engine.step()
            plain.step(number)
        for name, value in engine.state_dict().items():
            near(value, plain.model.state_dict()[name])

    def test_generate(self):
        """Around generate: the whole model, as TRL gathers it."""
        try:
            import transformers  # noqa: F401
        except ModuleNotFoundError as error:
            self.skipTest(str(error))
        plain = made("gpt2").eval()
        engine = self.engine(made("gpt2"))
        engine.commit(input_ids=tokens(0))
        prompt, options = tokens(0)[:, :4], {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
        with zero.gathered(engine.model), torch.no_grad():
            found = engine.model.eval().generate(prompt, **options)
        self.assertTrue(torch.equal(found, plain.generate(prompt, **options)))

    def test_held_and_tied(self):
        for stage in (2, 3):
            engine, plain = self.engine(made("tied_head"), stage), made("tied_head")
            loss = loss_of_tokens(engine.model, 0)
            with zero.gathered(engine.model.wte.weight):
                near(engine.model.wte.weight, plain.wte.weight)
            engine.backward(loss)
            engine.step()
            with zero.gathered(engine.model, modify=0), torch.no_grad():
                engine.model.wte.weight[7].zero_()
            self.assertEqual(engine.state_dict()["wte.weight"][7].abs().sum().item(), 0)


if __name__ == "__main__":
    unittest.main()
