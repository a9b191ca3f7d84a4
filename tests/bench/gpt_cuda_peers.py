"""Tokens per second of PyTorch on the model of gpt_cuda_bench, on one GPU: bf16 weights by autocast or as they are, torch.compile,
fused AdamW, scaled_dot_product_attention, clipping. Prints one JSON object with the bench's names.
   $PYTHON gpt_cuda_peers.py [--batch 8 --steps 20 --layers 12 --width 768 --heads 12 --context 1024 --vocab 50257 --peak 989
                                --accumulate 1 --budget 0 --json FILE]
--weights bf16 keeps weights and moments in bf16, which takes less memory and time than any engine with fp32 masters; the default,
fp32, computes in bf16 under autocast. --accumulate: micro-steps of a step. --budget: GiB of the GPU that PyTorch may take; 0: all.
--json: appends the object to a file as well. --pad rounds the vocabulary up to a multiple of 128, as is usual. Where torch or a GPU
is missing it says so and ends with status 0."""
import argparse
import json
import statistics
import sys
import time

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)
if not torch.cuda.is_available():
    print("skipped: no GPU")
    sys.exit(0)

from gpt_peers import GPT

WARM_UP = 5


def options():
    parser = argparse.ArgumentParser()
    sizes = {"batch": 8, "steps": 20, "layers": 12, "width": 768, "heads": 12, "context": 1024, "vocab": 50257,
             "accumulate": 1}
    for name, default in sizes.items():
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--peak", type=float, default=989, help="TFLOP/s, dense bf16")
    parser.add_argument("--weights", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--budget", type=float, default=0)
    parser.add_argument("--json")
    parser.add_argument("--pad", action="store_true")
    return parser.parse_args()


def step(model, optimizer, micro_steps, tokens, targets):
    start = time.perf_counter()
    for _ in range(micro_steps):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, targets)
        (loss / micro_steps).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    value = loss.item()
    torch.cuda.synchronize()
    return time.perf_counter() - start, value


def main():
    o = options()
    vocab = o.vocab
    if o.pad:
        o.vocab = (vocab + 127) // 128 * 128
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(1)
    if o.budget:
        torch.cuda.set_per_process_memory_fraction(o.budget * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    model = GPT(o).cuda()
    if o.weights == "bf16":
        model = model.bfloat16()
    parameters = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    compiled = torch.compile(model)
    tokens = torch.randint(vocab, (o.batch, o.context + 1), device="cuda")
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    runs = [step(compiled, optimizer, o.accumulate, inputs, targets) for _ in range(WARM_UP + o.steps)]
    seconds = statistics.median(s for s, _ in runs[WARM_UP:])
    rate = o.accumulate * o.batch * o.context / seconds
    tflops = (6 * parameters + 6 * o.layers * o.context * o.width) * rate * 1e-12
    line = json.dumps({"bench": "gpt", "device": "torch " + torch.__version__, "gpu": torch.cuda.get_device_name(),
                      "type": "bf16, weights " + o.weights, "parameters": parameters, "batch": o.batch,
                      "context": o.context, "step_ms": seconds * 1e3, "tokens_per_s": rate, "tflops": tflops,
                      "of_peak": tflops / o.peak, "loss": runs[-1][1],
                      "accumulate": o.accumulate, "peak_bytes": torch.cuda.max_memory_allocated()})
    print(line)
    if o.json:
        with open(o.json, "a") as file:
            print(line, file=file)


main()
