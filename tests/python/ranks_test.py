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


class Ranks(unittest.TestCase):
    def start(self, case):
        """The outputs of both ranks, without a launcher."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        place["KILLED"] = os.path.join(os.environ.get("TEST_TMPDIR", "/tmp"), "killed")
        start = lambda rank: subprocess.Popen(
            [sys.executable, __file__, case],
            env=os.environ | place | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        ranks = [start(0), start(1)]
        return [rank.communicate(timeout=280)[0] for rank in ranks]

    def test_equal(self):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, "equal"]
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280)
        self.assertEqual(run.returncode, 0, run.stdout)
        for rank in (0, 1):
            self.assertIn(f"rank {rank} is equal", run.stdout)

    def test_branches(self):
        for output in self.start("branches"):
            self.assertRegex(output, r"rank \d posted all-gather of blocks\.\d .* where rank \d posted all-gather of blocks\.\d")

    def test_killed(self):
        output = self.start("killed")[0]
        self.assertRegex(output, r"after [01]\.\d* s: .*rank 1")


if __name__ == "__main__":
    torch.set_num_threads(1)
    case = {"equal": equal, "branches": branches, "killed": killed}.get(sys.argv[-1])
    case() if case else unittest.main()
