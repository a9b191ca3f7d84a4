"""Tokens per second of PyTorch on the model of gpt_cuda_bench, on one GPU: bf16 weights by autocast or as they are, torch.compile,
fused AdamW, scaled_dot_product_attention, clipping. Prints one JSON object with the bench's names.
   $PYTHON gpt_cuda_peers.py [--batch 8 --steps 20 --layers 12 --width 768 --heads 12 --context 1024 --vocab 50257 --peak 0
                                --accumulate 1 --budget 0 --compile whole --device cuda --json FILE]
--weights bf16 keeps weights and moments in bf16, which takes less memory and time than any engine with fp32 masters; the default,
fp32, computes in bf16 under autocast. --accumulate: micro-steps of a step. --compile whole: the model as one graph; blocks: each
block and the loss, which deep models compile in a fraction of the time to nearly the same code. --budget: GiB of the GPU that
PyTorch may take; 0: all. --largest: of fewer and fewer layers, by fours, the first that trains. --json: appends the object to a file
as well. --pad rounds the vocabulary up to a multiple of 128, as is usual. Where torch or a GPU is missing it says so and ends with
status 0."""
import argparse
import gc
import json
import statistics
import sys
import time

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)
from gpt_peers import GPT

WARM_UP = 5


def options():
    parser = argparse.ArgumentParser()
    sizes = {"batch": 8, "steps": 20, "layers": 12, "width": 768, "heads": 12, "context": 1024, "vocab": 50257,
             "accumulate": 1}
    for name, default in sizes.items():
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--peak", type=float, default=0, help="TFLOP/s, dense bf16; 0: unknown")
    parser.add_argument("--weights", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compile", choices=["whole", "blocks"], default="whole")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--budget", type=float, default=0)
    parser.add_argument("--json")
    parser.add_argument("--pad", action="store_true")
    parser.add_argument("--largest", action="store_true")
    return parser.parse_args()


def compiled(model, how):
    if how == "whole":
        return torch.compile(model)
    for block in model.blocks:
        block.compile()
    model.loss = torch.compile(model.loss)
    return model


def step(o, model, optimizer, tokens, targets):
    start = time.perf_counter()
    for _ in range(o.accumulate):
        with torch.autocast(o.device, torch.bfloat16):
            loss = model(tokens, targets)
        (loss / o.accumulate).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    value = loss.item()
    if o.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, value


def train(o, vocab):
    """Parameters, the median step's seconds, the last loss."""
    torch.manual_seed(1)
    with torch.device(o.device):
        model = GPT(o)
        tokens = torch.randint(vocab, (o.batch, o.context + 1))
    if o.weights == "bf16":
        model = model.bfloat16()
    parameters = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    run = compiled(model, o.compile)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    runs = [step(o, run, optimizer, inputs, targets) for _ in range(WARM_UP + o.steps)]
    return parameters, statistics.median(seconds for seconds, _ in runs[WARM_UP:]), runs[-1][1]


def train_largest(o, vocab):
    while True:
        try:
            return train(o, vocab)
        except torch.OutOfMemoryError:
            if not o.largest or o.layers <= 4:
                raise
        o.layers -= 4
        gc.collect()
        torch.cuda.empty_cache()


def main():
    o = options()
    if o.device == "cuda" and not torch.cuda.is_available():
        print("skipped: no GPU")
        return
    vocab = o.vocab
    if o.pad:
        o.vocab = (vocab + 127) // 128 * 128
    torch.backends.cuda.matmul.allow_tf32 = True
    if o.budget:
        torch.cuda.set_per_process_memory_fraction(o.budget * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    try:
        parameters, seconds, loss = train_largest(o, vocab)
    except torch.OutOfMemoryError as error:
        print("skipped:", str(error).split("\n")[0])
        return
    rate = o.accumulate * o.batch * o.context / seconds
    tflops = (6 * parameters + 6 * o.layers * o.context * o.width) * rate * 1e-12
    gpu = o.device == "cuda"
    line = json.dumps({"bench": "gpt", "device": "torch " + torch.__version__, "gpu": torch.cuda.get_device_name() if gpu else "none",
                      "type": "bf16, weights " + o.weights, "compiled": o.compile, "layers": o.layers, "width": o.width,
                      "parameters": parameters, "batch": o.batch, "context": o.context, "step_ms": seconds * 1e3,
                      "tokens_per_s": rate, "tflops": tflops, "of_peak": tflops / o.peak if o.peak else None, "loss": loss,
                      "accumulate": o.accumulate, "peak_bytes": torch.cuda.max_memory_allocated() if gpu else 0})
    print(line)
    if o.json:
        with open(o.json, "a") as file:
            print(line, file=file)


main()
