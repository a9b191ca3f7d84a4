"""speed.py: this package beside FSDP2 and DeepSpeed stage 3, each side on 2 ranks of 1 thread. All sides live at once and take turns of
a few steps, so that what else the host does meets all of them; ratios are medians over the rounds. Then the Python of a unit.
    speed.py [--layers L] [--width W] [--tokens T,...] [--rounds N] [--steps N] [--sides zero,fsdp2,...] [--seconds S]
    sides: zero, zero_nvme, fsdp2, deepspeed, deepspeed_nvme, plain
Tokens are those of a step on both ranks. No round begins after S seconds. A side whose package is missing is left out."""

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings


def options():
    parser = argparse.ArgumentParser()
    for name, value in (("layers", 8), ("width", 512), ("rounds", 8), ("steps", 2), ("seconds", 480)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--tokens", default="512,4096")
    parser.add_argument("--sides", default="zero,fsdp2,deepspeed,zero_nvme,deepspeed_nvme")
    parser.add_argument("--side")
    return parser.parse_args()


def gpt2(layers, width):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=256, n_embd=width, n_layer=layers, n_head=max(1, width // 64), use_cache=False)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return GPT2LMHeadModel(config).train()


def sharded(model, side):
    """forward, backward and step of a side."""
    import torch

    place = {"device": "nvme", "nvme_path": os.environ.get("SPEED_DRIVE"), "pin_memory": False}
    zero_config = {"stage": 3, "stage3_param_persistence_threshold": 0} | ({"offload_optimizer": place} if "nvme" in side else {})
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "zero_optimization": zero_config}
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 3e-4}}
    if side.startswith("zero"):
        import zero

        engine = zero.fully_shard(model, config, ["GPT2Block"])
        return model, engine.backward, engine.step
    if side.startswith("deepspeed"):
        import deepspeed

        deepspeed.init_distributed("gloo")
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config | {"steps_per_print": 10**9})
        return engine, engine.backward, engine.step
    if side == "fsdp2":
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard

        if not dist.is_initialized():
            dist.init_process_group("gloo")
        for module in (*model.transformer.h, model):
            fully_shard(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def step():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return model, lambda loss: loss.backward(), step


def rank_of_a_side(o):
    """Reads lines `TOKENS STEPS`, trains, and answers with seconds a step and the peak of memory."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    import torch

    forward, backward, step = sharded(gpt2(o.layers, o.width), o.side)
    generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        count, steps = map(int, line.split())
        length = min(256, count // 2)
        began = time.perf_counter()
        for _ in range(steps):
            tokens = torch.randint(0, 256, (count // 2 // length, length), generator=generator)
            loss = forward(input_ids=tokens, labels=tokens).loss
            backward(loss)
            step()
        seconds = (time.perf_counter() - began) / steps
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "mib": mib, "loss": loss.item()}), file=answers, flush=True)
    os._exit(0)


class Side:
    def __init__(self, name, o):
        with socket.create_server(("127.0.0.1", 0)) as free:
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        self.name, self.errors, self.drive = name, tempfile.TemporaryFile("w+"), tempfile.TemporaryDirectory()
        command = [sys.executable, __file__, "--side", name, f"--layers={o.layers}", f"--width={o.width}"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors, "text": True}
        base = os.environ | place | {"OMP_NUM_THREADS": "1", "SPEED_DRIVE": self.drive.name}
        self.ranks = [subprocess.Popen(command, env=base | {"RANK": str(r), "LOCAL_RANK": str(r)}, **pipes) for r in (0, 1)]

    def answers(self):
        """Of rank 0; None: a rank has ended."""
        lines = [rank.stdout.readline() for rank in self.ranks]
        return lines[0] if all(lines) else None

    def turn(self, tokens, steps):
        for rank in self.ranks:
            rank.stdin.write(f"{tokens} {steps}\n")
            rank.stdin.flush()
        return json.loads(self.answers())

    def why(self):
        self.errors.seek(0)
        return (self.errors.read().strip().splitlines() or ["no word"])[-1][:200]


def beside(o):
    began = time.monotonic()
    sides = []
    for side in [Side(name, o) for name in o.sides.split(",")]:
        if side.answers() is not None:
            sides.append(side)
            continue
        print(f"{side.name}: left out: {side.why()}")
        for rank in side.ranks:
            rank.kill()
    for tokens in map(int, o.tokens.split(",")):
        rounds = [{side.name: side.turn(tokens, o.steps) for side in sides}]  # the first one warms up
        while len(rounds) <= o.rounds and time.monotonic() - began < o.seconds:
            rounds.append({side.name: side.turn(tokens, o.steps) for side in sides})
        rows = rounds[1:] or rounds
        print(f"{tokens} tokens a step, {len(rows)} rounds of {o.steps} steps:")
        for side in sides:
            rate = tokens / statistics.median(row[side.name]["seconds"] for row in rows)
            print(
                f"    {side.name:15} {rate:8.0f} tokens/s, peak {rows[-1][side.name]['mib']:6.0f} MiB, loss {rows[-1][side.name]['loss']:.4f}"
            )
        for ours, theirs in (("zero", "fsdp2"), ("zero", "deepspeed"), ("zero_nvme", "deepspeed_nvme")):
            if {ours, theirs} <= {side.name for side in sides}:
                ratios = sorted(row[theirs]["seconds"] / row[ours]["seconds"] for row in rows)
                memory = rows[-1][ours]["mib"] / rows[-1][theirs]["mib"]
                spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
                print(f"    {ours} / {theirs}: {statistics.median(ratios):.2f} of its tokens/s ({spread}), {memory:.2f} of its memory")
    for side in sides:
        for rank in side.ranks:
            rank.stdin.close()
    for side in sides:
        for rank in side.ranks:
            rank.wait(60)


class Timed:
    """The engine's library, and the time in it."""

    def __init__(self, lib):
        self.lib, self.seconds = lib, 0.0

    def __getattr__(self, name):
        function = getattr(self.lib, name)

        def call(*args):
            began = time.thread_time()
            try:
                return function(*args)
            finally:
                self.seconds += time.thread_time() - began

        setattr(self, name, call)
        return call


def overhead(rounds=30):
    """Of a pass of a model of 76 tiny parameters, on one rank: what its sharding adds to its forward and backward, in the CPU time of
    the thread, which others on the host change little."""
    import torch
    import torch.distributed as dist

    import zero._open

    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tokens = torch.randint(0, 256, (1, 16))
    sides = {side: sharded(gpt2(6, 32), side) for side in ("plain", "zero", "fsdp2")}
    assert len(list(sides["plain"][0].parameters())) == 76
    seconds = {side: [] for side in (*sides, "library")}

    def one(side):
        forward, backward, step = sides[side]
        began = time.thread_time()
        backward(forward(input_ids=tokens, labels=tokens).loss)
        seconds[side].append(time.thread_time() - began)
        step()

    lib = zero._open.lib
    for _ in range(rounds):
        for side in sides:
            one(side)
        zero._open.lib = timed = Timed(lib)
        one("zero")
        seconds["zero"].pop()
        seconds["library"].append(timed.seconds)
        zero._open.lib = lib
    middle = {side: 1e6 * statistics.median(values[5:]) for side, values in seconds.items()}
    units = 10  # 6 blocks, two embeddings, the last norm, the tied head
    ours, theirs = middle["zero"] - middle["plain"], middle["fsdp2"] - middle["plain"]
    python = (ours - middle["library"]) / units / 2
    print("76 parameters in 10 units, one rank, microseconds of CPU time:")
    print(
        f"    a forward and a backward: plain {middle['plain']:.0f}, zero + {ours:.0f}, fsdp2 + {theirs:.0f}: {ours / theirs:.2f} of it"
    )
    print(f"    the package's Python, for a unit and a pass: {python:.0f} (of zero's, {middle['library']:.0f} are in the library)")


if __name__ == "__main__":
    o = options()
    if o.side:
        rank_of_a_side(o)
    else:
        print("load of the host:", *os.getloadavg())
        overhead()
        beside(o)
        print("load of the host:", *os.getloadavg())
