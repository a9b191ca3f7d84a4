"""Tokens per second of PyTorch on the model of gpt_bench: forward, backward, clipping and AdamW.
   $PYTHON gpt_peers.py torch                                         one process of two threads
   $PYTHON -m torch.distributed.run --nproc-per-node 2 gpt_peers.py ddp|fsdp2    two ranks of one thread over gloo
 Options after the mode: --steps N --layers --width --heads --context --vocab --batch (global). Where torch cannot be
 imported it says so and ends with status 0. Both clocks are given; "processor" is the time that its threads ran, over
 their number: on a busy machine compare that, with OMP_WAIT_POLICY=passive."""
import argparse
import resource
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.token, self.position = nn.Embedding(o.vocab, o.width), nn.Embedding(o.context, o.width)
        self.blocks = nn.ModuleList(Block(o.width, o.heads) for _ in range(o.layers))
        self.norm, self.head = nn.LayerNorm(o.width), nn.Linear(o.width, o.vocab, bias=False)
        self.head.weight = self.token.weight
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position.weight
        for block in self.blocks:
            x = block(x)
        return self.loss(x, targets)

    def loss(self, x, targets):
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["torch", "ddp", "fsdp2"])
    sizes = {"steps": 9, "layers": 6, "width": 384, "heads": 6, "context": 256, "vocab": 256, "batch": 16}
    for name, default in sizes.items():
        parser.add_argument("--" + name, type=int, default=default)
    return parser.parse_args()


def wrap(model, mode):
    if mode == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if mode == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def step(model, optimizer, tokens, targets):
    loss = model(tokens, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


def main():
    o = options()
    ranks, rank = 1, 0
    torch.set_num_threads(2)
    if o.mode != "torch":
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo")
        ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    torch.manual_seed(0)
    model = wrap(GPT(o), o.mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=o.mode != "fsdp2")
    torch.manual_seed(rank)
    wall, processor = [], []
    for _ in range(o.steps + 2):
        data = torch.randint(0, o.vocab, (o.batch // ranks, o.context + 1))
        start = time.perf_counter(), time.process_time()
        step(model, optimizer, data[:, :-1], data[:, 1:].contiguous()).item()
        wall.append(time.perf_counter() - start[0])
        processor.append((time.process_time() - start[1]) / torch.get_num_threads())
    if rank == 0:
        for name, seconds in (("wall", wall), ("processor", processor)):
            seconds = sorted(seconds[2:])
            tokens = o.batch * o.context
            print(f"{o.mode} {name}: {tokens / seconds[len(seconds) // 2]:.0f} tokens/s (best {tokens / seconds[0]:.0f})")
        print(f"{o.mode} resident: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
