"""The rows of the part "python" of tools/gpu-check: the package on a GPU, beside PyTorch.
    gpu_python.py ROW [--device cpu] [--small] [--json FILE] [--side zero|torch|fsdp2] [--env NAME=VALUE]
Prints a line for each result, when it is there. Exit status 0: the row passed, or its last line begins with "skipped: ". --device cpu runs
what needs no GPU; --small: sizes for a CPU. --json: appends what the row measures. Needs zero, models.py of tests/python and transformers."""

import argparse
import contextlib
import ctypes as C
import json
import logging
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from itertools import pairwise

for _given in sys.argv[1:]:  # CUDA reads its variables when it starts
    if "=" in _given:
        os.environ[_given.partition("=")[0]] = _given.partition("=")[2]

import zero  # before anything uses the GPU

import torch
from torch import nn

ROWS = {}
options = argparse.Namespace()


def row(function):
    ROWS[function.__name__] = function
    return function


def say(*words, sep=" "):
    print(*words, sep=sep, flush=True)


def skip(why):
    say(f"skipped: {why}")
    sys.exit(0)


def needs_gpu():
    if options.device != "cuda":
        skip("this row needs a GPU")


def check(well, text):
    say("ok " if well else "BAD", text)
    if not well:
        raise SystemExit(f"{options.row}: {text}")


def sync():
    if options.device == "cuda":
        torch.cuda.synchronize()


# ---- models ----


def llama(layers=2, width=None, vocab=1024, **more):
    width = width or (32 if options.small else 256)
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=vocab, max_position_embeddings=4096, use_cache=False, attn_implementation="sdpa", **(sizes | more))
    return LlamaForCausalLM(config).train()


def batch(step, rows=4, length=None, vocab=1024):
    length = length or (16 if options.small else 128)
    generator = torch.Generator().manual_seed(step)
    return torch.randint(vocab, (rows, length), generator=generator).to(options.device)


def loss_of(model, step, **sizes):
    tokens = batch(step, **sizes)
    return model(input_ids=tokens, labels=tokens).loss


def config(stage=3, half=True, state=None, params=None, **more):
    made = {"stage": stage, "stage3_param_persistence_threshold": 0}
    for key, tier in (("offload_optimizer", state), ("offload_param", params)):
        if tier:
            made[key] = {"device": tier} | ({"nvme_path": os.environ.get("TEST_TMPDIR", tempfile.gettempdir())} if tier == "nvme" else {})
    optimizer = {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}}
    types = {"bf16": {"enabled": True}} if half else {}
    return {"train_micro_batch_size_per_gpu": 4, "optimizer": optimizer, "zero_optimization": made} | types | more


def engine_of(model, *args, options_of=None, **more):
    engine = zero.fully_shard(model, config(*args, **more), device=torch.device(options.device), **(options_of or {}))
    check(engine.device.type == options.device, f"the engine is on {engine.device}")
    return engine


def train(engine, steps=3, loss=None):
    losses = []
    for step in range(steps):
        value = (loss or loss_of)(engine.model, step)
        engine.backward(value)
        engine.step()
        losses.append(value.item())
    return losses


def plain(steps=3):
    """A loop in bf16 with fp32 masters."""
    master, model = llama().to(options.device), llama().to(options.device, torch.bfloat16)
    optimizer = torch.optim.AdamW(master.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for step in range(steps):
        loss = loss_of(model, step)
        loss.backward()
        for p, q in zip(master.parameters(), model.parameters(), strict=True):
            p.grad, q.grad = q.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(master.parameters(), model.parameters(), strict=True):
                q.copy_(p)
        losses.append(loss.item())
    return losses


def near(a, b, least=2e-3):
    return all(abs(x - y) <= least * abs(y) for x, y in zip(a, b, strict=True))


# ---- rows ----


@row
def doctor():
    from zero import doctor as doctors

    well = doctors.report()
    say(f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}")
    if options.device == "cuda":
        say(f"NCCL {torch.cuda.nccl.version()}, {torch.cuda.get_device_properties(0)}")
        began = time.perf_counter()
        torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
        say(f"1 GiB pinned in {time.perf_counter() - began:.2f} s")
        say(subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv"], capture_output=True, text=True).stdout)
    check(well, "the doctor")


@row
def losses():
    """Stages and tiers: the losses of PyTorch, and one hash."""
    expected, hashes = plain(), {}
    say("PyTorch", expected)
    tiers = [(stage, None, None) for stage in range(4)] + [(1, "cpu", None), (2, "cpu", None), (3, "cpu", None), (3, "cpu", "cpu"), (3, "nvme", None)]
    for stage, state, params in tiers:
        engine = engine_of(llama(), stage, state=state, params=params)
        found = train(engine)
        hashes[stage, state, params] = engine.hash()
        check(near(found, expected), f"stage {stage}, state {state}, parameters {params}: {found} {hashes[stage, state, params]}")
        engine.close()
    check(len(set(hashes.values())) == 1, f"one hash: {set(hashes.values())}")


class Aside(nn.Module):
    """Half of a block's work on a stream of its own."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.stream = nn.Linear(256, 256), nn.Linear(256, 256), None

    def forward(self, x):
        if options.device == "cpu" or self.stream is None:
            return x + self.a(x) + self.b(x)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            b = self.b(x)
            b.record_stream(self.stream)
        a = self.a(x)
        torch.cuda.current_stream().wait_stream(self.stream)
        return x + a + b


@row
def streams():
    """Side streams inside of units, another current stream, and gradients of another type."""

    def run(aside, current=None, fp32=False):
        torch.manual_seed(0)
        model = nn.Sequential(*(Aside() for _ in range(4)))
        if aside and options.device == "cuda":
            for block in model:
                block.stream = torch.cuda.Stream()
        with torch.cuda.stream(current) if current else contextlib.nullcontext():
            engine = engine_of(model, half=True)
            x = torch.ones(64, 256, device=options.device)
            engine.commit(x)
            if fp32:
                for p in model.parameters():
                    p.grad_dtype = torch.float32
            for _ in range(5):
                engine.backward(model(x).float().square().mean())
                engine.step()
            value = engine.hash()
        engine.close()
        return value

    expected = run(False)
    check(run(True) == expected, "side streams inside of units change no bit")
    if options.device == "cuda":
        check(run(True, torch.cuda.Stream()) == expected, "nor does another current stream")
    if hasattr(torch.Tensor, "grad_dtype"):
        check(run(False, fp32=True) == expected, "nor do gradients in fp32 of a bf16 product")


class Slow(torch.autograd.Function):
    """Its backward takes a while, as one that waits for other ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        for _ in range(40):
            time.sleep(0.05)
        return grad


@row
def interrupts():
    """Ctrl-C in a backward; graphs of CUDA."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    engine = engine_of(llama())
    train(engine, 1)
    loss = Slow.apply(loss_of(engine.model, 1))
    began = time.perf_counter()
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        engine.backward(loss)
        check(False, "Ctrl-C came out of the backward")
    except KeyboardInterrupt:
        took = time.perf_counter() - began - 0.5
    check(took < 1, f"Ctrl-C came out of the backward after {took:.2f} s")
    check(len(train(engine, 2)) == 2, "training goes on")
    if options.device == "cuda":
        x = torch.ones(64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
        graph.replay()
        check(y.sum().item() == 128 and len(train(engine, 2)) == 2, "a graph of the program's, captured beside the engine")
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                loss_of(engine.model, 0)
            check(False, "a captured forward is refused")
        except Exception as error:  # noqa: BLE001
            say(f"a captured forward: {error}")
        torch.cuda.synchronize()
        check(len(train(engine, 2)) == 2, "training goes on after it")


def rank():
    """One of two, started by `two`."""
    torch.distributed.init_process_group(os.environ["ROW_BACKEND"])
    engine = engine_of(llama(), 3, options_of={"activations": "auto"})
    found = train(engine)
    say(f"rank {engine.rank} of {engine.size} on {engine.device}: {found} {engine.hash()}")
    engine.close()
    torch.distributed.destroy_process_group()


@row
def two():
    """Two processes on the card."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    place["ROW_BACKEND"] = "nccl" if options.device == "cuda" else "gloo"
    command = [sys.executable, __file__, "rank", "--device", options.device, *(["--small"] if options.small else [])]
    started = [
        subprocess.Popen(command, env=os.environ | place | {"RANK": str(r), "LOCAL_RANK": str(r)}, stdout=-1, stderr=-2, text=True)
        for r in range(2)
    ]
    texts = [process.communicate()[0] for process in started]
    say(*texts)
    if any("Duplicate GPU" in text for text in texts):
        skip("NCCL refuses two ranks on one GPU")
    hashes = {line.split()[-1] for text in texts for line in text.splitlines() if line.startswith("rank ")}
    check([process.returncode for process in started] == [0, 0] and len(hashes) == 1, "both ranks end with one hash")


def unmap_times(work):
    """Milliseconds that a map and an unmap of 64 pages take while the GPU does this work, and that the work goes on after them."""
    page, pages = 2 << 20, 64
    driver, first, piece = C.CDLL("libcuda.so.1"), C.c_uint64(), (C.c_uint64 * pages)()
    here = (C.c_int * 2)(1, torch.cuda.current_device())  # a device's memory
    asked = C.create_string_buffer(bytes((C.c_int * 2)(1, 0)) + bytes(here), 32)  # pinned, for no other process

    def call(name, *args):
        if code := getattr(driver, name)(*args):
            check(False, f"{name}: {code}")

    def each(name, *args):
        for i in range(pages):
            call(name, C.c_uint64(first.value + i * page), C.c_size_t(page), *(args and (C.c_size_t(0), C.c_uint64(piece[i]), C.c_uint64(0))))

    call("cuMemAddressReserve", C.byref(first), C.c_size_t(pages * page), C.c_size_t(page), C.c_uint64(0), C.c_uint64(0))
    for i in range(pages):
        call("cuMemCreate", C.byref(piece, 8 * i), C.c_size_t(page), asked, C.c_uint64(0))
    times = [time.perf_counter()]
    work()
    for step in (
        lambda: each("cuMemMap", True),
        lambda: call("cuMemSetAccess", first, C.c_size_t(pages * page), bytes(here) + bytes(C.c_int(3)), C.c_size_t(1)),
        lambda: each("cuMemUnmap"),
        torch.cuda.synchronize,
    ):
        step()
        times.append(time.perf_counter())
    for i in range(pages):
        call("cuMemRelease", C.c_uint64(piece[i]))
    call("cuMemAddressFree", first, C.c_size_t(pages * page))
    return [1000 * (b - a) for a, b in pairwise(times)]


@row
def memory():
    """A full cache, parking, free order, and the model that is on the card already."""
    gib = 1 << 30
    if options.device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        held = [torch.empty(gib, dtype=torch.uint8, device="cuda") for _ in range(max(1, free // gib - 2))]
        del held
        say(f"PyTorch has cached {torch.cuda.memory_reserved() / gib:.1f} GiB")
    engine = engine_of(llama(4).to(options.device), options_of={"activations": "auto"})
    expected = train(engine)
    say(*engine.memory(), sep="\n")
    for tier in ("cpu",):
        before = engine.hash()
        engine.park(tier)
        if options.device == "cuda":
            held = torch.empty(torch.cuda.mem_get_info()[0] // 2, dtype=torch.uint8, device="cuda")
            del held
        engine.unpark()
        check(engine.hash() == before, f"parked on the {tier}, and back")
    engine.close()
    for free_order in (True, 1):
        engine = engine_of(llama(4), options_of={"free_order": free_order})
        check(train(engine) == expected, f"free_order={free_order}")
        say(*(line for line in engine.memory() if line[0] == "device"), sep="\n")
        began = time.perf_counter()
        train(engine)
        say(f"free_order={free_order}: {1000 * (time.perf_counter() - began) / 3:.1f} ms a step")
        engine.close()
    if options.device == "cuda":
        torch.cuda.synchronize()
        times = unmap_times(lambda: torch.cuda._sleep(10**9))  # half a second
        say("64 pages under work of the GPU: map {:.2f} ms, access {:.2f} ms, unmap {:.2f} ms; the work ends {:.0f} ms later".format(*times))
        check(times[3] > 100, "to map and to unmap waits for no work")


@row
def programs():
    """Compiled blocks, checkpoints, the Trainer with LoRA, save and resume."""
    expected = train(engine_of(llama()))
    for name, prepare in (
        ("compiled blocks", lambda model: [block.compile() for block in model.model.layers]),
        ("checkpoints", lambda model: model.gradient_checkpointing_enable({"use_reentrant": False})),
    ):
        if name == "compiled blocks" and options.device == "cpu":
            continue
        model = llama()
        prepare(model)
        engine = engine_of(model)
        found = train(engine)
        check(near(found, expected), f"{name}: {found}")
        with tempfile.TemporaryDirectory() as place:
            engine.save(place)
            before = engine.hash()
            train(engine, 1)
            engine.load(place)
            check(engine.hash() == before, "loaded what was saved")
        engine.close()
    try:
        import peft
        from transformers import TrainingArguments
        from zero.trainer import Trainer
    except ImportError as error:
        say(f"no Trainer with LoRA: {error}")
        return
    model = peft.get_peft_model(llama(), peft.LoraConfig(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    data = [{"input_ids": row, "labels": row} for row in batch(0, 32).cpu()]
    with tempfile.TemporaryDirectory() as place:
        arguments = TrainingArguments(place, per_device_train_batch_size=4, max_steps=4, save_steps=2, report_to=[], bf16=True,
                                      use_cpu=options.device == "cpu", logging_steps=1)  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=data, zero_config={"zero_optimization": {"stage": 3}})
        result = trainer.train()
        check(trainer.engine.device.type == options.device, f"the Trainer's engine is on {trainer.engine.device}: {result.training_loss}")


@row
def models():
    """Other models in fp32."""
    from models import KINDS, made, plain_losses

    def to(value, device):
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return type(value)(to(v, device) for v in value)
        return value.to(device) if isinstance(value, torch.Tensor) else value

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for kind in ("mlp", "shared", "attention", "lstm", "resnet", "gpt2", "vit"):
        if kind not in KINDS:
            continue
        model, expected = made(kind), [step[0] for step in plain_losses(kind, 3)]
        engine = engine_of(model, half=False, gradient_clipping=1.0)
        model.register_forward_pre_hook(
            lambda _, args, kw: (to(args, engine.device), {k: to(v, engine.device) for k, v in kw.items()}), with_kwargs=True
        )
        model.register_forward_hook(lambda _, args, out: out.cpu() if isinstance(out, torch.Tensor) else out)
        found = train(engine, 3, lambda model, step: KINDS[kind].loss(model, step, 0))
        check(near(found, expected, 1e-4), f"{kind}: {found}, PyTorch on the CPU {expected}")
        engine.close()


def timed(name, step, tokens, rounds):
    step()
    step()
    sync()
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        step()
        sync()
        times.append(time.perf_counter() - began)
    measured = {"name": name, "tokens_per_s": tokens / statistics.median(times), "step_ms": 1000 * statistics.median(times)}
    if options.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        measured |= {"card_bytes": total - free, "torch_peak_bytes": torch.cuda.max_memory_reserved()}
    say(json.dumps(measured))
    if options.json:
        with open(options.json, "a") as file:
            file.write(json.dumps(measured) + "\n")


def speed(side, rows, offload):
    """Llama-3.2-1B's shape in bf16: in memory beside plain PyTorch, and in host memory beside FSDP2."""
    sizes = dict(layers=16, width=2048, intermediate_size=8192, vocab=128256, num_attention_heads=32, num_key_value_heads=8)
    length, rounds = 2048, 5
    if options.small:
        sizes, length, rounds = {"vocab": 1024}, 16, 1
    sizes["tie_word_embeddings"] = True
    tokens = batch(0, rows, length, sizes["vocab"])
    name = f"{side}, {rows} x {length} tokens, {'host memory' if offload else 'in memory'}"
    if side == "zero":
        model = llama(**sizes)
        place = {"state": "cpu", "params": "cpu"} if offload else {}
        engine = engine_of(model, 3 if offload else 0, **place, gradient_clipping=1.0, options_of={"activations": "auto"})
        engine.commit(input_ids=tokens, labels=tokens)

        def step():
            engine.backward(model(input_ids=tokens, labels=tokens).loss)
            engine.step()
    else:
        model = llama(**sizes)
        if side == "fsdp2":
            from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512", "RANK": "0", "WORLD_SIZE": "1"}
            torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo")
            policies = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}
            if offload and options.device == "cuda":  # which pins memory
                policies["offload_policy"] = CPUOffloadPolicy()
            mesh = torch.distributed.init_device_mesh(options.device, (1,))
            for block in model.model.layers:
                fully_shard(block, mesh=mesh, **policies)
            fully_shard(model, mesh=mesh, **policies)
        else:
            model.to(options.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        casts = torch.autocast(options.device, torch.bfloat16) if side == "torch" else contextlib.nullcontext()

        def step():
            with casts:
                loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    timed(name, step, rows * length, rounds)


for _name, _rows, _offload in (("in_memory", 8, False), ("in_host_memory", 8, True), ("small_batches", 1, True)):
    ROWS[_name] = lambda rows=_rows, offload=_offload: speed(options.side, rows, offload)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("row", choices=[*ROWS, "rank"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--env", action="append", help="NAME=VALUE, set before CUDA starts")
    parser.add_argument("--side", choices=["zero", "torch", "fsdp2"], default="zero")
    parser.parse_args(namespace=options)
    warnings.simplefilter("once")
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
    if options.device == "cuda" and not torch.cuda.is_available():
        skip("PyTorch finds no GPU")
    (rank if options.row == "rank" else ROWS[options.row])()


if __name__ == "__main__":
    main()
