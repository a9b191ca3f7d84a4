"""together.py NAME...: each of these NAME_test.py, or those of $ONLY, in a copy of this process, which has imported what takes seconds.
zero is not among that: guard_test.py changes PyTorch before. A file that needs a package of NEEDS that is not there is skipped."""

import gc
import importlib
import os
import resource
import runpy
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import torch

NEEDS = {"state": ["safetensors"], "trainer": ["transformers", "accelerate"], "weights": ["safetensors"]}
SLOW = ("torch._dynamo", "torch._functorch.aot_autograd", "torch._subclasses.fake_tensor", "torch.utils.flop_counter")
MODELS = ("transformers.trainer", "transformers.models.gpt2.modeling_gpt2", "transformers.models.llama.modeling_llama")


def run(name):
    """In a copy: as python NAME_test.py, also at the end of the program."""
    place = Path(os.environ["TEST_TMPDIR"], name)
    place.mkdir()
    os.chdir(place)
    os.environ |= {"TEST_TMPDIR": str(place)}
    sys.argv = [str(Path(__file__).with_name(name + "_test.py"))]
    runpy.run_path(sys.argv[0], run_name="__main__")


def copied(name):
    """Whether it passes."""
    sys.stdout.flush()
    if pid := os.fork():
        return os.waitpid(pid, 0)[1] == 0
    run(name)
    sys.exit()


def main():
    torch.set_num_threads(1)
    for module in (*SLOW, *MODELS):
        with suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()  # a collection in a copy skips what is imported: a quarter of the CPU time of tests with Trainers
    rows, seconds, only = [], 0.0, os.environ.get("ONLY", "").split()
    for name in sys.argv[1:]:
        if only and name not in only:
            continue
        lacks = [package for package in NEEDS.get(name, ()) if not find_spec(package)]
        print(f"== {name}" + (f": skipped, {' and '.join(lacks)} not installed" if lacks else ""), file=sys.stderr, flush=True)
        how = "skipped" if lacks else "passed" if copied(name) else "FAILED"
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows.append(f"{how:8} {used.ru_utime + used.ru_stime - seconds:6.1f} s of CPU time  {name}")
        seconds = used.ru_utime + used.ru_stime
    own = resource.getrusage(resource.RUSAGE_SELF)
    print(*rows, f"         {own.ru_utime + own.ru_stime:6.1f} s of CPU time  imports", sep="\n", flush=True)
    failed = any(row.startswith("FAILED") for row in rows)
    return int(failed or "skipped" in "".join(rows) and os.environ.get("ZERO_SET_UP", "0") != "0")


if __name__ == "__main__":
    sys.exit(main())
