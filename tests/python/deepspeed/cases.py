"""cases.py SCRIPT…: runs scripts of this folder, programs written for DeepSpeed, in one process, and with DeepSpeed, too. A script has a
list CASES of functions, each of which returns numbers; rank 0 prints them as one line of JSON for each function. deepspeed_test.py
compares them. SCRIPT:CASE,… runs some of them."""

import importlib
import json
import os
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist


def fresh():
    """accelerate as in a new process."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)


def shared_directory():
    """One for all ranks."""
    dist.is_initialized() or dist.init_process_group("gloo")
    place = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(place, src=0)
    return place[0]


def tiny_llama(seed=0, **options):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=64, **(sizes | options)))


def configuration(stage, **keys):
    base = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "zero_optimization": {"stage": stage}}
    return base | {"gradient_clipping": 1.0, "steps_per_print": float("inf")} | keys


def main():
    torch.set_num_threads(1)
    if int(os.environ.get("RANK", 0)):
        os.dup2(2, 1)  # the lines of rank 0 are longer than what a pipe keeps in one piece
    failed = 0
    for argument in (argument for argument in sys.argv[1:] if not argument.startswith("--")):
        script, _, names = argument.partition(":")
        for function in importlib.import_module(script).CASES:
            if names and function.__name__ not in names.split(","):
                continue
            began = time.process_time()
            try:
                result = function()
            except Exception:
                traceback.print_exc()
                failed = 1
                continue
            if int(os.environ.get("RANK", 0)) == 0:
                print(f"{script}.{function.__name__}: {time.process_time() - began:.1f} s of CPU time", file=sys.stderr)
                print("RESULT " + json.dumps({f"{script}.{function.__name__}": result}), flush=True)
    if dist.is_initialized() and not failed:
        dist.barrier()
    sys.stdout.flush()
    os._exit(failed)  # whatever threads a library has left


if __name__ == "__main__":
    main()
