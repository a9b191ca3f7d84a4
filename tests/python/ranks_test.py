"""Two ranks: `ranks_test.py` starts them, `ranks_test.py CASE` is one of them."""

import os
import signal
import socket
import subprocess
import sys
import time
import unittest

import torch
import torch.distributed as dist
from models import KINDS, configuration, loss_of_vectors, made, plain_losses

import zero

STEPS = 6
RANK = int(os.environ.get("RANK", 0))


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
    for kind in ("mlp", "gpt2", "own_parameter", "by_data"):  # by_data: ranks use different blocks
        expected = [row[RANK] for row in plain_losses(kind, STEPS, ranks=2)]
        hashes = set()
        for stage in (1, 3):
            engine = zero.fully_shard(made(kind), configuration(stage))
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
    print(f"rank {RANK} is equal", flush=True)


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


def killed():
    """Rank 1 dies; rank 0 says so soon."""
    engine = zero.fully_shard(made("mlp"), configuration(3))
    train(engine, "mlp", 2)
    if RANK == 1:
        with open(os.environ["KILLED"], "w") as file:
            file.write(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        train(engine, "mlp", 1000)
    except (zero.ZeroError, RuntimeError) as error:
        with open(os.environ["KILLED"]) as file:
            print(f"after {time.time() - float(file.read()):.2f} s: {error}", flush=True)
        os._exit(0)


def interrupted():
    """Rank 0 waits for rank 1, which does not come before rank 0 has seen Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this program was started with
    engine = zero.fully_shard(made("mlp"), configuration(3), secret=os.environ["SECRET"])
    train(engine, "mlp", 2)
    done = os.environ["KILLED"]
    try:
        if RANK == 0:
            print("rank 0 waits", flush=True)
        while RANK == 1 and not os.path.exists(done):
            time.sleep(0.05)
        train(engine, "mlp", 1)
    except KeyboardInterrupt:
        with open(done, "w") as file:
            file.write(str(time.time()))
    except zero.ZeroError as error:
        print(f"rank {RANK}: {error.code} {error}", flush=True)
    engine.close()


def wrong_secret():
    """Ranks with different secrets do not train together. They wait for each other before: the timeout is short."""
    open(f"{os.environ['KILLED']}.{RANK}", "w").close()
    while not os.path.exists(f"{os.environ['KILLED']}.{1 - RANK}"):
        time.sleep(0.01)
    try:
        zero.fully_shard(made("mlp"), configuration(3, comm={"timeout_s": 0.3}), secret=os.environ["SECRET"] + str(RANK))
        print(f"rank {RANK} has met another one", flush=True)
    except zero.ZeroError as error:
        print(f"rank {RANK}: {error}", flush=True)


class Ranks(unittest.TestCase):
    def start(self, case):
        """Both ranks, without a launcher."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "SECRET": "a secret of this test"}
        place["KILLED"] = os.path.join(os.environ.get("TEST_TMPDIR", "/tmp"), f"killed.{os.getpid()}.{case}")
        start = lambda rank: subprocess.Popen(
            [sys.executable, __file__, case],
            env=os.environ | place | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.time_file = place["KILLED"]
        return [start(0), start(1)]

    def outputs(self, ranks):
        return [rank.communicate(timeout=280)[0] for rank in ranks]

    def test_equal(self):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, "equal"]
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280)
        self.assertEqual(run.returncode, 0, run.stdout)
        for rank in (0, 1):
            self.assertIn(f"rank {rank} is equal", run.stdout)

    def test_branches(self):
        for output in self.outputs(self.start("branches")):
            self.assertRegex(output, r"rank \d posted all-gather of blocks\.\d .* where rank \d posted all-gather of blocks\.\d")

    def test_killed(self):
        output = self.outputs(self.start("killed"))[0]
        self.assertRegex(output, r"after [01]\.\d* s: .*rank 1")

    def test_interrupted(self):
        ranks = self.start("interrupted")
        while "rank 0 waits" not in ranks[0].stdout.readline():
            self.assertIsNone(ranks[0].poll())
        time.sleep(1)  # it is in the engine
        began = time.time()
        ranks[0].send_signal(signal.SIGINT)
        outputs = self.outputs(ranks)
        with open(self.time_file) as file:
            seconds = float(file.read()) - began
        print(f"KeyboardInterrupt after {seconds:.2f} s")
        self.assertLess(seconds, 10, outputs)  # a tenth of a second; a minute and more without the question
        self.assertRegex(outputs[1], r"rank 1: ZERO_E_INTERRUPTED .*rank 0 was interrupted")

    def test_wrong_secret(self):
        for output in self.outputs(self.start("wrong_secret")):
            self.assertRegex(output, r"(?i)rank \d: .*secret")


if __name__ == "__main__":
    torch.set_num_threads(1)
    case = {"equal": equal, "branches": branches, "killed": killed, "interrupted": interrupted, "wrong_secret": wrong_secret}.get(
        sys.argv[-1]
    )
    case() if case else unittest.main()
