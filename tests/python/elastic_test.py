"""tools/python/examples/elastic.py under torchrun: a rank is killed, the others end, torchrun starts them again, and the run goes on; then
on other numbers of ranks; and without the node that was lost. Every step that counts takes the samples of a run without interruption, in
order."""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import torch
from models import need_torchrun
from two import reserved

LENGTH, BATCH = 100, 12  # the data end within a step
NODE = "node"  # the name of a start that loses its torchrun, too
SECOND = "second"  # what this file is then: second_torchrun
HANGS_S = 600
# A torchrun that is silent for so long is lost; one that is alone waits for a second one for so long.
LOST, NEVER_LOST = "keep_alive_interval=1,keep_alive_max_attempt=12,last_call_timeout=20", "keep_alive_max_attempt=1000"


class Recorded(torch.utils.data.Dataset):
    """The example's data. Each start of a rank writes the indices that it reads into a file of its own, and a rank may kill itself
    in the middle of a step."""

    def __init__(self, data, file, dies_at, node):
        self.data, self.file, self.dies_at, self.node, self.reads = data, file, dies_at, node, 0

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        if self.reads == self.dies_at:
            if self.node:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        self.reads += 1
        self.file.write(f"{index}\n")
        self.file.flush()
        return self.data[index]


def worker(example, config, run, steps, name, dies_at):
    """What torchrun starts. The last rank, or the node's, dies at its read number `dies_at` of the first start."""
    spec = importlib.util.spec_from_file_location("elastic", example)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.set_num_threads(1)
    rank, size, start = (int(os.environ[key]) for key in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
    dies = int(dies_at) if (rank == size - 1 or name == NODE) and start == 0 else -1
    with open(f"{run}/{name}.{start}.{rank}of{size}", "w") as file:
        weights = module.train(config, Path(run), int(steps), Recorded(module.made_up(LENGTH), file, dies, name == NODE))
    if rank == 0:
        print("weights", weights)


def answers(endpoint):
    host, port = endpoint.split(":")
    with socket.socket() as one:
        return one.connect_ex((host, int(port))) == 0


def second_torchrun(endpoint, *arguments):
    """Is loaded, and begins when the first one has the place where they meet: that one waits for it no longer than its last call."""
    from torch.distributed.run import main

    while not answers(endpoint):
        time.sleep(0.05)
    main(list(arguments))


def order(first, count):
    """The samples of a run, from `first`: the data again and again, each time in another order."""
    through = lambda k: torch.randperm(LENGTH, generator=torch.Generator().manual_seed(3 + k)).tolist()
    orders = {}
    return [orders.setdefault(s // LENGTH, through(s // LENGTH))[s % LENGTH] for s in range(first, first + count)]


class Elastic(unittest.TestCase):
    def setUp(self):
        need_torchrun()
        self.dir = tempfile.TemporaryDirectory()
        self.path = Path(self.dir.name)
        self.addCleanup(self.dir.cleanup)

    def config(self, **keys):
        optimizer = {"type": "AdamW", "params": {"lr": 1e-2}}
        path = self.path / "config.json"
        path.write_text(json.dumps({"optimizer": optimizer, "zero_optimization": {"stage": 3}, "train_batch_size": BATCH} | keys))
        return path

    def command(self, run, ranks, steps, name, dies_at=-1, config=None, endpoint=None, second=False):
        (self.path / run).mkdir(exist_ok=True)
        options = f"--nnodes {'1:2' if endpoint else 1} --nproc-per-node {ranks} --max-restarts 1 --monitor-interval 0.1 --rdzv-backend c10d --rdzv-id {run} "
        options += f"--rdzv-endpoint {endpoint or 'localhost:0'} --rdzv-conf {LOST if endpoint else NEVER_LOST}"
        place = [config or self.config(), self.path / run]
        torchrun = [__file__, SECOND, endpoint] if second else ["-m", "torch.distributed.run"]
        return [sys.executable, *torchrun, *options.split(), __file__, EXAMPLE, *map(str, [*place, steps, name, dies_at])]

    def torchrun(self, *given, expected=0, **options):
        """The lines of rank 0, of all starts."""
        done = subprocess.run(self.command(*given, **options), capture_output=True, text=True, timeout=HANGS_S)
        self.output = done.stdout + done.stderr
        self.assertEqual(done.returncode, expected, self.output)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def weights(self):
        return re.search(r"^weights (\w+)$", self.output, re.M)[1]

    def assertSamples(self, run, name, start, ranks, begun, steps):
        """The start on `ranks` ranks made at least these steps after step `begun`, and the ranks together read the steps' samples."""
        share = BATCH // ranks
        reads = [list(map(int, (self.path / run / f"{name}.{start}.{r}of{ranks}").read_text().split())) for r in range(ranks)]
        self.assertGreaterEqual(min(map(len, reads)), steps * share)
        for k in range(steps):
            expected = order((begun + k) * BATCH, BATCH)
            self.assertEqual(sorted(sum((r[k * share : (k + 1) * share] for r in reads), [])), sorted(expected))
            if ranks == 1:
                self.assertEqual(reads[0][k * share : (k + 1) * share], expected)

    def test_restarted_and_resized(self):
        whole = self.torchrun("whole", 2, 15, "whole")
        never = self.weights()
        self.assertEqual([line["step"] for line in whole], list(range(1, 16)))
        self.assertSamples("whole", "whole", 0, 2, 0, 15)

        lines = self.torchrun("run", 2, 15, "two", dies_at=12 * BATCH // 2 + 3)  # in step 13, after the checkpoint of step 10
        self.assertIn("goes on after step 10 on 2 ranks", self.output)
        # Rank 0 may be in step 12 still when rank 1, which has ended it, dies.
        self.assertIn([line["step"] for line in lines], [[*range(1, end), *range(11, 16)] for end in (12, 13)])
        self.assertEqual(list({line["step"]: line for line in lines}.values()), whole)
        self.assertEqual(self.weights(), never)
        self.assertSamples("run", "two", 0, 2, 0, 12)
        self.assertSamples("run", "two", 1, 2, 10, 5)

        three = self.torchrun("run", 3, 20, "three")
        self.assertIn("goes on after step 15 on 3 ranks", self.output)
        self.assertSamples("run", "three", 0, 3, 15, 5)
        one = self.torchrun("run", 1, 25, "one", config=self.config(train_micro_batch_size_per_gpu=4))  # three micro-steps
        self.assertSamples("run", "one", 0, 1, 20, 5)
        self.assertEqual([(line["step"], line["samples"]) for line in three + one], [(s, s * BATCH) for s in range(16, 26)])

        # What cannot go on says why, and changes nothing.
        self.torchrun("run", 1, 30, "five", expected=1, config=self.config(train_micro_batch_size_per_gpu=5))
        self.assertRegex(self.output, "ZeroError: .*train_batch_size")
        config = self.config(train_batch_size="auto", train_micro_batch_size_per_gpu=6, gradient_accumulation_steps=1)
        self.torchrun("run", 1, 30, "smaller", expected=1, config=config)
        self.assertIn('is of a run with batches of 12 samples, and here are 6 on 1 ranks: set "train_batch_size": 12', self.output)
        self.assertEqual((self.path / "run/checkpoints/latest").read_text().split()[0], "step_00000025")

    def test_a_node_is_lost(self):
        """Two nodes of one rank, each with a torchrun. One node's are killed: the engine tells the other rank, which ends; its torchrun
        waits for no other node, and starts it again, alone."""
        place = reserved()
        self.addCleanup(place.close)
        endpoint = f"localhost:{place.getsockname()[1]}"
        stays = self.command("nodes", 1, 16, "stays", endpoint=endpoint)
        dies_at = 7 * BATCH // 2 + 1  # in step 8, after the checkpoint of step 5
        lost = self.command("nodes", 1, 16, NODE, dies_at, endpoint=endpoint, second=True)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(stays, **pipes) as first:
            self.addCleanup(first.kill)
            second = subprocess.run(lost, capture_output=True, timeout=HANGS_S)
            output = first.communicate(timeout=HANGS_S)[0]
        self.assertEqual(first.returncode, 0, output)
        self.assertEqual(second.returncode, -signal.SIGKILL)
        self.assertRegex(output, r"ZeroError: .*rank [01] (is gone|has left)")
        self.assertIn("goes on after step 5 on 1 ranks", output)
        self.assertEqual([int(step) for step in re.findall(r'^{"step": (\d+)', output, re.M)][-11:], list(range(6, 17)))
        self.assertSamples("nodes", "stays", 1, 1, 5, 11)


if __name__ == "__main__":
    if "TORCHELASTIC_RESTART_COUNT" in os.environ:
        worker(*sys.argv[1:])
    elif sys.argv[1] == SECOND:
        second_torchrun(*sys.argv[2:])
    else:
        EXAMPLE = sys.argv.pop(1)
        unittest.main()
