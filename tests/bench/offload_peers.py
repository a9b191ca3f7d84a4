"""DeepSpeed's whole engine.step() with the optimizer's state in host memory or on NVMe: bf16 training, fp32 state,
clipping, stage 3 on one rank, as large a share of the time in the step as a tiny batch leaves.

  DS_ACCELERATOR=cpu python offload_peers.py cpu|nvme [--layers N] [--path DIR] [--steps S]

Needs torch and deepspeed (pip) and libaio-dev. Each layer has 16.8 M parameters. The last line:
  TIER: MEDIAN Gparam/s, FASTEST Gparam/s"""
import argparse
import os
import time

arguments = argparse.ArgumentParser()
arguments.add_argument("tier", choices=("cpu", "nvme"))
arguments.add_argument("--layers", type=int, default=8)
arguments.add_argument("--path", default="/tmp/offload_peers")
arguments.add_argument("--steps", type=int, default=6)
given = arguments.parse_args()
os.environ.setdefault("DS_ACCELERATOR", "cpu")
for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29577")):
    os.environ.setdefault(name, value)

import deepspeed
import torch

torch.set_num_threads(2)
deepspeed.init_distributed("gloo")
width = 4096
model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(given.layers)])
parameters = sum(p.numel() for p in model.parameters())
offload = {"device": given.tier}
if given.tier == "nvme":
    os.makedirs(given.path, exist_ok=True)
    offload.update(nvme_path=given.path, pin_memory=False, buffer_count=16, pipeline_read=True, pipeline_write=True)
config = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "sub_group_size": 2 * width * width, "stage3_param_persistence_threshold": 0,
                          "offload_optimizer": offload},
    "aio": {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 1, "single_submit": False, "overlap_events": True},
    "steps_per_print": 10**9,
}
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config,
                                       dist_init_required=False)
x = torch.randn(1, width).bfloat16()
seconds = []
for step in range(given.steps + 1):
    loss = engine(x).float().pow(2).mean()
    engine.backward(loss)
    began = time.perf_counter()
    engine.step()
    seconds.append(time.perf_counter() - began)
seconds = sorted(seconds[1:])
print(f"{given.tier}: {parameters / seconds[len(seconds) // 2] / 1e9:.4f} Gparam/s, {parameters / seconds[0] / 1e9:.4f} Gparam/s",
      flush=True)
