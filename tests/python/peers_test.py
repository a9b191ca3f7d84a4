"""Behaviours that the test suites of peers check (FSDP, DeepSpeed, Transformers, PEFT, Accelerate), written anew in small."""

import sys

import torch

from peers import forwards, loops, models_of_transformers, saving, scenarios, two_ranks

if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(scenarios.run(*sys.argv[1:2]) > 0)
