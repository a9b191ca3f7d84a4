"""Programs written for DeepSpeed, in the folder deepspeed/, each started on two ranks by the package's launcher, beside PyTorch alone."""

import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock
from pathlib import Path

import torch
from two import HANGS_S, Rank, reserved

SCRIPTS = Path(__file__).resolve().parent / "deepspeed"
PAGE = SCRIPTS.parents[2] / "tools/python/DEEPSPEED.md"
PATH = {"PYTHONPATH": os.pathsep.join(filter(None, (str(SCRIPTS), os.environ.get("PYTHONPATH"))))}
LIBRARIES = {"trainer": "accelerate", "accelerator": "accelerate", "alignment": "trl"}
HERE = "127.0.0.1:PORT"
TOLERANCE = 2e-6
# The launcher, to which the signal comes when a rank runs, and is in no list yet.
ENDED_AT_A_START = """
import os, signal, subprocess
from zero.deepspeed.__main__ import main
class Popen(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        os.kill(os.getpid(), signal.SIGTERM)
subprocess.Popen = Popen
main()
"""


def run(script, *arguments, environment=None, options=(), status=0):
    """The numbers that the ranks have printed, by case; or with another status than 0 their output. `script`: a file in the folder, or with
    --module a name."""
    place = reserved()
    port = str(place.getsockname()[1])
    ranks = [] if "--hostfile" in options else ["--num_gpus", "2"]
    launcher = [sys.executable, "-m", "zero.deepspeed", *ranks, "--master_port", port, *options]
    command = [*launcher, script if "--module" in options else str(SCRIPTS / script), *arguments]
    done = subprocess.run(command, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=HANGS_S)
    place.close()
    assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    rows = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found = {name: found for row in rows for name, found in json.loads(row.replace(f":{port}", ":PORT")).items()}
    return found if status == 0 else done.stdout + done.stderr


def numbers(value):
    return [x for row in value for x in numbers(row)] if isinstance(value, list) else [value]


def without_rates(rows):
    """The engine's step steps the schedule: the log then has the next step's rate, the third of a row."""
    if not isinstance(rows, list):
        return rows
    return [without_rates(row) for row in rows] if any(isinstance(row, list) for row in rows) else [*rows[:2], *rows[3:]]


class Scripts(unittest.TestCase):
    """All of them by one start: a process imports torch and transformers for many seconds."""

    @classmethod
    def setUpClass(cls):
        names = ["plain", "behaviours", *(name for name, library in LIBRARIES.items() if importlib.util.find_spec(library))]
        cls.found = run("cases.py", *names, options=["--no_local_rank"])

    def of(self, script):
        return {name.partition(".")[2]: found for name, found in self.found.items() if name.startswith(f"{script}.")}

    def assertNear(self, found, right, where):
        found, right = numbers(found), numbers(right)
        self.assertEqual(len(found), len(right), where)
        for i, (a, b) in enumerate(zip(found, right, strict=True)):
            self.assertEqual(a is None, b is None, (where, i, a, b))
            if a is not None:
                self.assertLessEqual(abs(a - b), TOLERANCE * max(1, abs(b)), (where, i, a, b))

    def test_plain(self):
        """A loop and a model of its own: its assertions, and the numbers of PyTorch."""
        found = self.of("plain")
        sys.path.insert(0, str(SCRIPTS))
        import reference

        for stage, rows in enumerate(found["stages"]):
            self.assertNear(rows, reference.stages(), ("stage", stage))
        self.assertNear(found["boundaries"], 3 * reference.boundaries(), "boundaries")
        alone = ("names", "schedules", "loaders", "checkpoints", "overflow", "refused")  # assertions of their own
        for case in found.keys() - {"stages", "boundaries", *alone}:
            self.assertNear(found[case], getattr(reference, case)(), case)

    def test_behaviours(self):
        """Nine in ten hold. The others are rows of a table in DEEPSPEED.md."""
        found = self.of("behaviours")["behaviours"]
        table = PAGE.read_text().partition("## Behaviours\n")[2].partition("\n## ")[0]
        rows = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
        self.assertEqual({name: why for name, why in found.items() if bool(why) != (name in rows)}, {})
        self.assertLessEqual(10 * len(rows), len(found))

    @unittest.skipUnless(importlib.util.find_spec("accelerate"), "accelerate is not installed")
    def test_trainer(self):
        """Transformers' Trainer beside itself under DistributedDataParallel."""
        found = self.of("trainer")
        self.assertEqual(len(found), 12)
        for case in ("file_file", "file_program", "program_file", "program_program"):
            for stage in (2, 3):
                pair = found[f"stage{stage}_{case}"], found[f"stage0_{case}"]
                self.assertNear(*(pair if case == "program_program" else map(without_rates, pair)), (stage, case))

    @unittest.skipUnless(importlib.util.find_spec("accelerate"), "accelerate is not installed")
    def test_accelerator(self):
        found = self.of("accelerator")
        self.assertEqual(len(found), 4)
        for kind in ("file", "program"):
            self.assertNear(found[f"stage2_{kind}"], found[f"stage3_{kind}"], kind)

    @unittest.skipUnless(importlib.util.find_spec("trl"), "trl is not installed")
    def test_alignment(self):
        """TRL's trainers beside themselves under DistributedDataParallel."""
        found = self.of("alignment")
        self.assertEqual(len(found), 12)
        for case, rows in found.items():
            self.assertNear(rows, found[f"{case[:-1]}0"], case)


class Programs(unittest.TestCase):
    def test_launcher(self):
        """Each rank has its number in an argument; the first failure ends all."""
        self.assertEqual(run("launched.py", "--word", "two"), {"0": [2, 0, "two", HERE], "1": [2, 1, "two", HERE]})
        self.assertIn("rank 1 ends", run("launched.py", "--word", "bad", status=3))
        options = ["--include", "localhost:1", "--save_pid", "--module"]
        self.assertEqual(run("launched", "--word", "one", options=options, environment=PATH), {"0": [1, 0, "one", HERE]})

    def test_ended(self):
        """SIGTERM to the launcher ends its ranks, also while it starts them."""
        options = ["--num_gpus", "2", "--no_python", "--no_local_rank", "sh", "-c", "echo $$; exec sleep 1000"]
        for command in (["-m", "zero.deepspeed"], ["-c", ENDED_AT_A_START]):
            child = subprocess.Popen([sys.executable, *command, *options], stdout=subprocess.PIPE, text=True)
            ranks = [int(child.stdout.readline()) for _ in range(2 if command[0] == "-m" else 0)]
            if ranks:
                child.terminate()
            self.assertEqual(child.wait(600), 128 + signal.SIGTERM)
            child.communicate(timeout=600)  # the ranks have closed it
            for rank in ranks:
                self.assertRaises(ProcessLookupError, os.kill, rank, 0)

    def test_interrupted(self):
        """Ranks hear one Ctrl-C, from the terminal or from the launcher, and may save."""
        rank = """if True:
            import signal, time
            heard = []
            signal.signal(signal.SIGINT, lambda *_: heard.append(1))
            print("up", flush=True)
            while not heard:
                time.sleep(0.01)
            time.sleep(0.3)
            print("heard", len(heard), flush=True)
        """
        launcher = [sys.executable, "-m", "zero.deepspeed", "--num_gpus", "2", "--no_python", "--no_local_rank", sys.executable, "-c", rank]
        terminal = [sys.executable, "-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))"]
        for around in (terminal, []):
            child = subprocess.Popen(around + launcher, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
            child.stdout.read(len("up\n") * 2)
            if not around:
                child.send_signal(signal.SIGINT)
            said, _ = child.communicate("\x03" if around else "", timeout=600)
            self.assertEqual((said.count("heard 1"), child.returncode), (2, 0), said)

    def test_hosts(self):
        """A hostfile of two hosts with one rank each; `ssh` runs the command here."""
        with tempfile.TemporaryDirectory() as place:
            hosts, ssh = Path(place, "hosts"), Path(place, "ssh")
            hosts.write_text("one slots=2\n# none\ntwo slots=1\nthree slots=4\n")
            ssh.write_text(f'#!/bin/sh\necho "$@" >>{place}/lines\nfor last; do :; done\nexec sh -c "$last"\n')
            ssh.chmod(0o755)
            options = ["--hostfile", str(hosts), "--include", "one:1@two@three", "--num_nodes", "2", "--master_addr", "127.0.0.1", "--module"]
            path = PATH | {"PATH": f"{place}:{os.environ['PATH']}"}
            found = run("launched", "--word", "a b", options=options, environment=path)
            self.assertEqual(found, {"0": [2, 0, "a b", HERE], "1": [2, 0, "a b", HERE]})
            self.assertIn("-tt -- one cd ", Path(place, "lines").read_text())

    def test_refused(self):
        """By the launcher: hosts that are not there, an option of ssh as a host, a secret in a command line."""
        from zero.deepspeed import __main__ as launcher

        with tempfile.TemporaryDirectory() as place:
            hosts = Path(place, "hosts")
            for lines, options, sentence in (
                ("one slots=2\ntwo slots=1", ["--exclude", "four"], "name one of those"),
                ("-oProxyCommand=false slots=1\ntwo slots=1", [], "is no host"),
                ("one slots=2\ntwo slots=1", [], "ZERO_JOB_SECRET_FILE"),
            ):
                hosts.write_text(lines)
                words = ["zero-deepspeed", "--hostfile", str(hosts), *options, "program.py"]
                with unittest.mock.patch.object(sys, "argv", words), unittest.mock.patch.dict(os.environ, ZERO_JOB_SECRET="word"):
                    with unittest.mock.patch.object(signal, "signal"):
                        self.assertRaisesRegex(SystemExit, sentence, launcher.main)

    def test_place(self):
        """Who this process is among those of a launcher; a sentence where that cannot be known."""
        from zero.deepspeed import comm

        slurm = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
        mpi = dict(zip(comm._LAUNCHERS[0], "1210", strict=True))
        right = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
        for variables, found in (
            (slurm | {"SLURM_STEP_TASKS_PER_NODE": "4"}, right),
            (slurm | {"MASTER_ADDR": "one"}, right),
            (slurm, "set MASTER_ADDR"),
            (mpi, "set MASTER_ADDR"),
            ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}),
            ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "PMI_SIZE is set"),
            ({"PMIX_RANK": "0"}, "PMIX_RANK is set"),
        ):
            with unittest.mock.patch.dict(os.environ, variables, clear=True):
                if isinstance(found, str):
                    self.assertRaisesRegex(comm.ZeroError, found, comm._place)
                else:
                    self.assertEqual({key: value for key, value in comm._place().items() if key in right}, found)

    def test_options(self):
        """Of DeepSpeed's optimizers: each in its place; what the engine has not is refused."""
        from zero.deepspeed import ops

        weights = [torch.nn.Parameter(torch.ones(3))]
        lamb = ops.FusedLamb(weights, 0.1, True, (0.9, 0.9), 1e-6, False, 0.2, 0.0, 9.0, 0.5).zero_row["params"]
        self.assertEqual((lamb["weight_decay"], lamb["max_coeff"], lamb["min_coeff"]), (0.2, 9.0, 0.5))
        groups = [{"params": weights, "adam_w_mode": False}, {"params": [torch.nn.Parameter(torch.ones(1))]}]
        for sentence, make in (
            ("gradient_clipping", lambda: ops.FusedLamb(weights, max_grad_norm=1.0)),
            ("eps_inside_sqrt", lambda: ops.FusedLamb(weights, eps_inside_sqrt=True)),
            ("weight_decy", lambda: ops.FusedAdam(weights, weight_decy=0.1)),
            ("each once", lambda: ops.FusedAdam(weights, 0.1, lr=0.1)),
            ("states are fp32", lambda: ops.DeepSpeedCPUAdam(weights, fp32_optimizer_states=False)),
            ("differs between the groups", lambda: ops.FusedAdam(groups).zero_row),
        ):
            self.assertRaisesRegex(Exception, sentence, make)

    def test_not_by_accident(self):
        """Without the command there is no deepspeed here; install() is refused after transformers was imported."""

        def installs():
            import zero.deepspeed as z

            os.chdir(SCRIPTS)
            found = importlib.util.find_spec("deepspeed")
            assert found is None or z.FOLDER not in (found.origin or "")  # of the folder beside this file: none
            sys.modules["transformers"] = types.ModuleType("transformers")
            with self.assertRaisesRegex(ImportError, "transformers is imported already"):
                z.install()
            del sys.modules["transformers"]
            z.install()
            import deepspeed

            assert deepspeed.__version__ == importlib.metadata.version("deepspeed") == "0.19.8+zero"

        child = Rank(installs, 0)
        output = child.output()
        self.assertEqual(child.code, 0, output)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
