"""A Llama of transformers under DeepSpeed: stage 3, one rank, optimizer state and parameters on NVMe, fp32, AdamW, every block
recomputed. tools/bench-offload trains the same model with `zero train`.

  DS_ACCELERATOR=cpu python nvme_peer.py MODEL.json [--path DIR] [--steps S] [--micro M] [--tokens T]

MODEL.json is a Hugging Face config.json. Needs torch, transformers and deepspeed (pip) and libaio-dev. The last line:
  MEDIAN tokens/s, PEAK MiB (resident)"""
import argparse
import json
import os
import resource
import time

arguments = argparse.ArgumentParser()
arguments.add_argument("model")
arguments.add_argument("--path", default="/tmp/nvme_peer")
arguments.add_argument("--steps", type=int, default=3)
arguments.add_argument("--micro", type=int, default=4)
arguments.add_argument("--tokens", type=int, default=128)
given = arguments.parse_args()
os.environ.setdefault("DS_ACCELERATOR", "cpu")
for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29578")):
    os.environ.setdefault(name, value)

import deepspeed
import torch
import transformers

torch.set_num_threads(2)
deepspeed.init_distributed("gloo")
os.makedirs(given.path, exist_ok=True)
nvme = {"device": "nvme", "nvme_path": given.path, "pin_memory": False}
offload = {
    "offload_optimizer": nvme | {"buffer_count": 4, "pipeline_read": True, "pipeline_write": True},
    "offload_param": nvme | {"buffer_count": 8, "buffer_size": 1 << 22},
}
config = {
    "train_batch_size": given.micro,
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0, **offload},
    "aio": {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 1, "single_submit": False, "overlap_events": True},
    "steps_per_print": 10**9,
}
with open(given.model) as file:
    settings = transformers.LlamaConfig(**json.load(file), use_cache=False)
model = transformers.LlamaForCausalLM(settings)
model.gradient_checkpointing_enable()
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config, dist_init_required=False)
engine.train()
seconds = []
for step in range(given.steps + 1):
    began = time.perf_counter()
    for _ in range(given.micro):
        tokens = torch.randint(0, settings.vocab_size, (1, given.tokens))
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
    seconds.append(time.perf_counter() - began)
seconds = sorted(seconds[1:])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"{given.micro * given.tokens / seconds[len(seconds) // 2]:.2f} tokens/s, {peak:.0f} MiB", flush=True)
