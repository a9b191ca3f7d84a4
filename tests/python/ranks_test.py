"""Two ranks: copies of this process, which has imported all that they need."""

import contextlib
import copy
import ctypes
import os
import re
import signal
import sys
import tempfile
import time
import unittest
from importlib.util import find_spec

import torch
import torch.distributed as dist
from models import KINDS, MLP, configuration, loss_of_vectors, made, need_torchrun, plain_losses, tokens, vectors
from torch.distributed.fsdp import fully_shard
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from two import Rank, TwoRanks

import zero

STEPS = 4
RANK = 0
TRANSFORMERS = find_spec("transformers")


def train(engine, kind, steps=STEPS):
    losses = []
    for step in range(steps):
        loss = KINDS[kind].loss(engine.model, step, RANK)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def equal():
    """The losses of this rank are plain PyTorch's over both ranks' batches; a hash for all stages; torch.distributed beside it."""
    global RANK
    RANK = int(os.environ["RANK"])
    for kind in ("mlp", "own_parameter", "by_data", *(["gpt2"] if TRANSFORMERS else [])):  # by_data: ranks use different blocks
        expected = [row[RANK] for row in plain_losses(kind, STEPS, ranks=2)]
        hashes = set()
        for stage, zero_keys in ((1, {}), (3, {}), (3, {"mics_shard_size": 1})):  # the last: HSDP, of one rank's shards
            engine = zero.fully_shard(made(kind), configuration(stage, zero_optimization=zero_keys))
            worst = max(abs(a - b) for a, b in zip(train(engine, kind), expected))
            assert worst < 2e-6, (kind, stage, worst)
            hashes.add(engine.hash())
            if RANK == 0:
                assert set(engine.state_dict(rank0_only=True)) == set(made(kind).state_dict())
            else:
                assert engine.state_dict(rank0_only=True) == {}
            engine.close()
        assert len(hashes) == 1, hashes
    dist.init_process_group("gloo")
    engine = zero.fully_shard(made("mlp"), configuration(3))
    for step in range(2):
        loss = loss_of_vectors(engine.model, step, RANK)
        total = loss.detach().clone()
        dist.all_reduce(total)
        engine.backward(loss)
        engine.step()
    engine.close()
    dist.destroy_process_group()
    return RANK


def trainer():
    """transformers.Trainer on the engine, beside itself on torch.distributed."""
    import transformers
    import trainer_test

    options = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 4, "per_device_train_batch_size": 2}
    both = [trainer_test.trainer(os.path.join(os.environ["PLACE"], str(shard)), shard=shard, **options) for shard in (True, False)]
    for t in both:
        t.train()
    assert both[0].engine.size == 2
    save_model = transformers.Trainer.save_model  # of another version, whose rank 1 does not come to _save
    transformers.Trainer.save_model = lambda self, place=None, _internal_call=False: self.args.should_save and self._save(place)
    other = trainer_test.trainer(os.path.join(os.environ["PLACE"], "other"), **options)
    other.train()
    transformers.Trainer.save_model = save_model
    assert other.engine.hash() == both[0].engine.hash()
    again = zero.fully_shard(zero.load_pretrained(made("gpt2"), os.path.join(other.args.output_dir, "checkpoint-8")), configuration(1))
    assert again.hash() == other.engine.hash()
    if both[0].args.process_index == 0:  # which logs
        trainer_test.TrainerTest().assertLogs(*both, "loss", "eval_loss")
    return both[0].args.process_index


def torchrun(case):
    """As the command torchrun starts ranks, but of a function."""
    place = LaunchConfig(1, 1, 2, run_id="test", rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="fork", max_restarts=0)
    with tempfile.TemporaryDirectory() as os.environ["PLACE"]:
        print("ranks", sorted(elastic_launch(place, case)().values()), flush=True)


def branches():
    """Rank 1 calls its blocks in another order."""
    engine = zero.fully_shard(made("mlp"), configuration(3))
    try:
        train(engine, "mlp", 1)
        engine.model.blocks = engine.model.blocks[::-1] if RANK == 1 else engine.model.blocks
        train(engine, "mlp", 1)
    except (zero.ZeroError, RuntimeError) as error:
        print(f"rank {RANK}: {error}", flush=True)
        engine.close()
    fsdp2()


def fsdp2():
    """The same program under FSDP2: rank 1 calls its blocks in another order. Both ranks end the step, each with weights of which
    half are another block's."""
    store = dist.FileStore(os.environ["KILLED"] + ".store", 2)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=2)
    model, seen = made("mlp"), {}
    whole = {i: block.a.weight.detach().clone() for i, block in enumerate(model.blocks)}
    for block in (*model.blocks, model):
        fully_shard(block)
    loss_of_vectors(model, 0, RANK).backward()
    first = model.blocks[0].a
    model.blocks = model.blocks[::-1] if RANK == 1 else model.blocks
    first.register_forward_pre_hook(lambda module, args: seen.update(weight=module.weight.detach().clone()))
    loss_of_vectors(model, 1, RANK).backward()
    mixture = torch.cat([whole[0][:48], whole[2][48:]]) if RANK == 0 else torch.cat([whole[2][:48], whole[0][48:]])
    assert torch.equal(seen["weight"], mixture), (seen["weight"] - whole[0]).abs().amax(1)
    print(f"rank {RANK}: FSDP2 has trained on a mixture", flush=True)
    dist.destroy_process_group()


def first_values():
    """Each rank makes its model with a seed of its own, on the CPU or on the meta device: all begin with that of rank 0, buffers too."""

    def make(seed, device="cpu"):
        torch.manual_seed(seed)
        with torch.device(device):
            model = KINDS["resnet"].make()
        model.register_buffer("frequencies", torch.randn(8))
        model.count = torch.nn.Parameter(torch.tensor([seed]), requires_grad=False)
        return model

    for stage, *devices in (0, "cpu", "cpu"), (0, "cpu", "meta"), (2, "meta", "cpu"), (3, "cpu", "meta"), (3, "meta", "cpu"):
        right = make(100, devices[0]).state_dict()
        engine = zero.fully_shard(make(100 + RANK, devices[RANK]), configuration(stage), secret=os.environ["SECRET"])
        state = engine.state_dict()
        for name, value in state.items():
            assert right[name].is_meta or torch.equal(value, right[name]), (stage, devices, name)
        sums = (ctypes.c_double * 1)(sum(value.double().sum().item() for value in state.values()))
        own = sums[0]
        zero._abi.lib.zero_engine_sum(engine._handle, sums, 1)
        assert sums[0] == 2 * own, (stage, devices, own, sums[0])
        engine.load_state_dict(make(7 + RANK).state_dict())  # another one on each rank
        for name, value in make(7).named_parameters():
            assert torch.equal(engine.state_dict()[name], value) or name == "count", (stage, devices, name)
        engine.close()
    print(f"rank {RANK} has the values of rank 0", flush=True)


def generates():
    """The ranks end at different tokens: generate() has plain PyTorch's, greedy and by beams, and training goes on."""
    store = dist.FileStore(os.environ["KILLED"] + ".store", 2)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=2)
    model = made("llama").eval()
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    prompts = [tokens(rank)[:1, :4] for rank in range(2)]
    ends = model.generate(prompts[0], **options, eos_token_id=None)[0, 4].item()  # rank 0's first
    for stage, beams in ((1, 1), (3, 1), (3, 3)):
        right = model.generate(prompts[RANK], **options, num_beams=beams, eos_token_id=ends).tolist()
        engine = zero.fully_shard(made("llama").eval(), configuration(stage))
        engine.commit(prompts[0])
        assert engine.model.generate(prompts[RANK], **options, num_beams=beams, eos_token_id=ends).tolist() == right, (stage, beams)
        train(engine, "llama", 2)
        engine.close()
    print(f"rank {RANK} has {len(right[0])} tokens", flush=True)
    dist.destroy_process_group()


def alone():
    """Below stage 3 rank 0 evaluates by itself: between steps, and between a forward and its backward. An exception in it drops it."""
    for stage in (0, 1, 2):
        hashes = set()
        for evaluates in (False, True):
            engine = zero.fully_shard(made("mlp"), configuration(stage), secret=os.environ["SECRET"])

            def evaluate(engine=engine, evaluates=evaluates):
                for batch in range(2 if evaluates and RANK == 0 else 0):
                    engine.model.eval()
                    with torch.no_grad():
                        engine.model(vectors(batch, 0)[0])
                        with contextlib.suppress(RuntimeError):
                            engine.model(torch.zeros(1, 5))  # of no fitting shape
                    engine.model.train()

            for step in range(3):
                loss = loss_of_vectors(engine.model, step, RANK)
                evaluate()
                engine.backward(loss)
                engine.step()
                evaluate()
            hashes.add(engine.hash())
            engine.close()
        assert len(hashes) == 1, (stage, hashes)
    print(f"rank {RANK} has one hash", flush=True)


def no_targets():
    """Rank 0 has a batch without targets: its loss reaches no unit."""
    for stage in (0, 1, 3):
        engine = zero.fully_shard(made("mlp"), configuration(stage), secret=os.environ["SECRET"])
        for step in range(STEPS):
            loss = loss_of_vectors(engine.model, step, RANK)
            engine.backward(torch.zeros((), requires_grad=True) if (step, RANK) == (1, 0) else loss)
            norm = engine.step().grad_norm
            if step == 1:
                print(f"stage {stage}: norm {norm:.6f}", flush=True)
        print(f"stage {stage}: {engine.hash()}", flush=True)
        engine.close()


def inner_losses():
    """The ranks' losses are of different inner tensors, in turn with a loss of the whole model."""

    class Kept(MLP):
        def forward(self, x):
            self.kept = [x]
            for block in self.blocks:
                self.kept.append(block(self.kept[-1]))
            return self.head(self.kept[-1])

    def loss(model, step, rank):
        output = model(vectors(step, rank)[0])
        return model.kept[1 + rank].square().mean() if step % 2 == rank else output.square().mean()

    for stage in (0, 2, 3):
        torch.manual_seed(0)
        model = Kept()
        plain = copy.deepcopy(model)
        engine = zero.fully_shard(model, configuration(stage, gradient_clipping=0), secret=os.environ["SECRET"])
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
        for step in range(4):
            ((loss(plain, step, 0) + loss(plain, step, 1)) / 2).backward()
            engine.backward(loss(engine.model, step, RANK))
            right = torch.nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None]).item()
            assert abs(engine.step().grad_norm / right - 1) < 1e-5, (stage, step)
            optimizer.step()
            optimizer.zero_grad()
        print(f"rank {RANK}: stage {stage} {engine.hash()}", flush=True)
        engine.close()


def killed():
    """Rank 1 dies; rank 0 says so soon. It may be in the step that rank 1 has ended."""
    engine = zero.fully_shard(made("mlp"), configuration(3, comm={"timeout_s": 300}))
    try:
        train(engine, "mlp", 2)
        if RANK == 1:
            with open(os.environ["KILLED"], "w") as file:
                file.write(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        train(engine, "mlp", 1000)
    except (zero.ZeroError, RuntimeError) as error:
        with open(os.environ["KILLED"]) as file:
            print(f"after {time.time() - float(file.read()):.2f} s: {error}", flush=True)
        os._exit(0)


def fails_while_saving():
    """Rank 1 ends by an exception while a save is under way; rank 0 says so soon."""
    for way in ("close", "end of the program"):
        engine = zero.fully_shard(made("mlp"), configuration(3, checkpoint={"async": True}), secret=os.environ["SECRET"])
        try:
            train(engine, "mlp", 2)
            engine.save(f"{os.environ['KILLED']}.{way}")  # rank 0 may be in it still when rank 1 fails
            if RANK == 1:
                raise ValueError("bad batch")
            train(engine, "mlp", 1000)
        except ValueError:
            if way == "close":
                engine.close()
            else:
                sys.last_type = ValueError  # as Python sets it
        except zero.ZeroError as error:
            print(f"{way}: {error}", flush=True)
        engine._closing()


class Asked(list):
    """In place of zero._abi.raised: says when the engine asks whether the program was interrupted, as it does while it waits."""

    said = False

    def __bool__(self):
        if not self.said and sys._getframe(1).f_code is zero._abi._answers.__code__:
            self.said = True
            print("rank 0 waits", flush=True)
        return len(self) > 0


def interrupted():
    """Rank 0 waits for rank 1, which does not come before rank 0 has seen Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this program was started with
    engine = zero.fully_shard(made("mlp"), configuration(3), secret=os.environ["SECRET"])
    train(engine, "mlp", 2)
    done = os.environ["KILLED"]
    try:
        if RANK == 0:
            zero._abi.raised = Asked()
        for _ in range(6000):
            if RANK == 1 and not os.path.exists(done):
                time.sleep(0.05)
        train(engine, "mlp", 1)
    except KeyboardInterrupt:
        with open(done, "w") as file:
            file.write(str(time.time()))
    except zero.ZeroError as error:
        print(f"rank {RANK}: {error.code} {error}", flush=True)
    engine.close()


def wrong_secret():
    """Ranks with different secrets do not train together. Each says so; with this short timeout they may miss each other at first."""
    model, heard = made("mlp"), [f"{os.environ['KILLED']}.{rank}" for rank in (0, 1)]
    for _ in range(100):
        try:
            zero.fully_shard(model, configuration(3, comm={"timeout_s": 0.5}), secret=os.environ["SECRET"] + str(RANK))
            raise AssertionError("ranks with other secrets have met")
        except zero.ZeroError as error:
            print(f"rank {RANK}: {error}", flush=True)
            if "secret" in str(error).lower():
                open(heard[RANK], "w").close()
        if all(map(os.path.exists, heard)):
            break


def as_rank(case):
    global RANK
    RANK = int(os.environ["RANK"])
    case()


class Ranks(TwoRanks):
    def start(self, case):
        return super().start(lambda: as_rank(case))

    def assertTorchrun(self, case):
        need_torchrun()
        launcher = Rank(lambda: torchrun(case), 0)
        output = launcher.output()
        self.assertEqual(launcher.code, 0, output)
        self.assertIn("ranks [0, 1]", output)

    def test_equal(self):
        self.assertTorchrun(equal)

    @unittest.skipUnless(TRANSFORMERS, "transformers is not installed")
    def test_trainer(self):
        self.assertTorchrun(trainer)

    def test_branches(self):
        for rank in self.start(branches):
            output = rank.output()
            self.assertRegex(output, r"rank \d posted all-gather of blocks\.\d .* where rank \d posted all-gather of blocks\.\d")
            if torch.__version__ >= (2, 8):  # with FSDP2 on CPUs
                self.assertRegex(output, r"rank \d: FSDP2 has trained on a mixture")

    def test_first_values(self):
        for rank in self.start(first_values):
            self.assertRegex(rank.output(), r"rank \d has the values of rank 0")

    def test_generates(self):
        for rank in self.start(generates):
            self.assertRegex(rank.output(), r"rank \d has \d+ tokens")

    def test_alone(self):
        for rank in self.start(alone):
            self.assertRegex(rank.output(), r"rank \d has one hash")

    def test_inner_losses(self):
        outputs = [rank.output() for rank in self.start(inner_losses)]
        hashes = [re.findall(r"stage \d (\w+)", output) for output in outputs]
        self.assertEqual((len(hashes[0]), hashes[0]), (3, hashes[1]), outputs)

    def test_no_targets(self):
        outputs = [rank.output() for rank in self.start(no_targets)]
        self.assertEqual(outputs[0], outputs[1])
        found = re.findall(r"stage \d: (.*)", outputs[0])
        self.assertEqual((len(found), len(set(found))), (6, 2), outputs)  # a norm and a hash, of all stages

    def test_killed(self):
        output, _ = (rank.output() for rank in self.start(killed))
        found = re.search(r"after ([\d.]+) s: .*rank 1", output)
        self.assertTrue(found, output)
        print(found[0])
        self.assertLess(float(found[1]), 60)  # a tenth of a second on an idle host

    def test_fails_while_saving(self):
        output, _ = (rank.output() for rank in self.start(fails_while_saving))
        for way in ("close", "end of the program"):
            self.assertRegex(output, rf"{way}: .*rank 1 failed: ValueError")

    def test_interrupted(self):
        ranks = self.start(interrupted)
        for line in ranks[0].lines:
            if "rank 0 waits" in line:
                break
        began = time.time()
        os.kill(ranks[0].pid, signal.SIGINT)
        outputs = [rank.output() for rank in ranks]
        self.assertTrue(os.path.exists(self.time_file), outputs)
        with open(self.time_file) as file:
            seconds = float(file.read()) - began
        print(f"KeyboardInterrupt after {seconds:.2f} s")
        self.assertLess(seconds, 60, outputs)  # a tenth of a second; without the question rank 1 comes after five minutes
        self.assertRegex(outputs[1], r"rank 1: ZERO_E_INTERRUPTED .*rank 0 was interrupted")

    def test_wrong_secret(self):
        for rank in self.start(wrong_secret):
            self.assertRegex(rank.output(), r"(?i)rank \d: .*secret")
            self.assertEqual(rank.code, 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    TRANSFORMERS and made("gpt2")  # transformers imports a model when it is first used
    unittest.main()
