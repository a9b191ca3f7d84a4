"""speed.py: a GPT-2 under this package, FSDP2 and DeepSpeed stage 3, each side on 2 ranks of 1 thread; medians of interleaved rounds.
    speed.py [--layers L] [--width W] [--tokens T] [--rounds N] [--steps N] [--sides zero,fsdp2,...]
    sides: zero, zero_nvme, fsdp2, deepspeed, deepspeed_nvme, plain
Tokens are those of a step on both ranks. A side whose package is missing is left out."""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time


def options():
    parser = argparse.ArgumentParser()
    for name, value in (("layers", 8), ("width", 512), ("tokens", 512), ("rounds", 3), ("steps", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--sides", default="zero,fsdp2,deepspeed")
    parser.add_argument("--side")
    return parser.parse_args()


def one_side(o):
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    config = GPT2Config(vocab_size=256, n_positions=256, n_embd=o.width, n_layer=o.layers, n_head=o.width // 64, use_cache=False)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model = GPT2LMHeadModel(config).train()
    count = sum(p.numel() for p in model.parameters())
    place = {"device": "nvme", "nvme_path": tempfile.mkdtemp(), "pin_memory": False}
    zero_config = {"stage": 3, "stage3_param_persistence_threshold": 0} | ({"offload_optimizer": place} if "nvme" in o.side else {})
    ds = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "zero_optimization": zero_config}
    ds["optimizer"] = {"type": "AdamW", "params": {"lr": 3e-4}}
    if o.side.startswith("zero"):
        import zero

        engine = zero.fully_shard(model, ds, [GPT2Block])
        forward, backward, step = model, engine.backward, engine.step
    elif o.side.startswith("deepspeed"):
        import deepspeed

        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds | {"steps_per_print": 10**9})
        forward, backward, step = engine, engine.backward, engine.step
    else:
        if o.side == "fsdp2":
            import torch.distributed as dist
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            dist.init_process_group("gloo")
            mesh = init_device_mesh("cpu", (2,))
            for block in model.transformer.h:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        forward, backward = model, lambda loss: loss.backward()

        def step():
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    generator, times = torch.Generator().manual_seed(rank), []
    length = min(256, o.tokens // 2)
    for _ in range(o.steps):
        tokens = torch.randint(0, 256, (o.tokens // 2 // length, length), generator=generator)
        began = time.perf_counter()
        loss = forward(input_ids=tokens, labels=tokens).loss
        backward(loss)
        step()
        times.append(time.perf_counter() - began)
    if rank == 0:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rate = o.tokens / statistics.median(times[2:])
        print("RESULT " + json.dumps({"rate": rate, "mib": peak, "loss": loss.item(), "params": count}), flush=True)
    sys.stdout.flush()
    os._exit(0) if o.side.startswith("deepspeed") else None


def main(o):
    results = {side: [] for side in o.sides.split(",")}
    for _ in range(o.rounds):
        for side in results:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, "--side", side]
            command += [f"--{k}={getattr(o, k)}" for k in ("layers", "width", "tokens", "steps")]
            run = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
            found = [line[7:] for line in run.stdout.splitlines() if line.startswith("RESULT ")]
            if found:
                results[side].append(json.loads(found[0]))
            else:
                print(f"{side}: no result: {run.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    first = next(iter(results))
    for side, rows in results.items():
        if not rows:
            continue
        rate, mib = (statistics.median(row[k] for row in rows) for k in ("rate", "mib"))
        ratio = statistics.median(a["rate"] / b["rate"] for a, b in zip(results[first], rows))
        print(
            f"{side:15} {rate:8.0f} tokens/s, {first} / it {ratio:.2f}, peak {mib:.0f} MiB, {rows[0]['params'] / 1e6:.1f} M parameters"
        )


if __name__ == "__main__":
    o = options()
    one_side(o) if o.side else main(o)
