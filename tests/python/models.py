"""Small models of many kinds, each with a batch for a step and a loss, and their losses under plain PyTorch."""

from __future__ import annotations

import copy
import os
import unittest
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(F.relu(self.a(x)))


class MLP(nn.Module):
    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block(96) for _ in range(blocks)), nn.Linear(96, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Shared(nn.Module):
    """One block, three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.head = nn.Linear(96, 96), Block(96), nn.Linear(96, 10)

    def forward(self, x):
        x = self.first(x)
        for _ in range(3):
            x = self.block(x)
        return self.head(x)


class TiedHead(nn.Module):
    """The embedding's weight is used by a function, outside of the embedding's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.blocks = nn.Embedding(256, 32), nn.ModuleList(Block(32) for _ in range(2))

    def forward(self, tokens):
        x = self.wte(tokens)
        for block in self.blocks:
            x = block(x)
        return F.linear(x, self.wte.weight)


class OwnParameter(nn.Module):
    """The model itself has a parameter, which it uses before and after its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.blocks = nn.Parameter(torch.ones(96)), nn.ModuleList(Block(96) for _ in range(3))
        self.head = nn.Linear(96, 10)

    def forward(self, x):
        x = x * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(x * self.scale)


class Branches(nn.Module):
    """Two branches of one input, registered in another order than used, and a block that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.c, self.unused, self.b, self.a = nn.Linear(96, 10), Block(96), Block(96), Block(96), Block(96)

    def forward(self, x):
        return self.head(self.c(self.a(x) + self.b(x)))


class ByData(nn.Module):
    """The data choose one of two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = Block(96), Block(96), nn.Linear(96, 10)

    def forward(self, x):
        return self.head(self.a(x) if x.sum() > 0 else self.b(x))


class DictBlock(Block):
    def forward(self, d):
        return {"x": SimpleNamespace(value=super().forward(d["x"].value)), "n": 3}


class Dicts(MLP):
    """Blocks that take and return dictionaries of objects."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(DictBlock(96) for _ in range(3))

    def forward(self, x):
        d = {"x": SimpleNamespace(value=x)}
        for block in self.blocks:
            d = block(d)
        return self.head(d["x"].value)


class InPlace(MLP):
    """The outputs of blocks are changed in place."""

    def forward(self, x):
        for block in self.blocks:
            y = block(x)
            y += 1
            y.mul_(0.5)
            x = F.relu(y, inplace=True)
        return self.head(x)


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.rnn = nn.Embedding(256, 32), nn.LSTM(32, 32, 2, batch_first=True)
        self.head = nn.Linear(32, 256)

    def forward(self, tokens):
        return self.head(self.rnn(self.wte(tokens))[0])


class Attention(nn.Module):
    """torch's own transformer, whose attention uses a child's weights without calling the child."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.wte, self.encoder, self.head = nn.Embedding(256, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 256)

    def forward(self, tokens):
        return self.head(self.encoder(self.wte(tokens)))


class ResBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.down = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += self.down(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    """As torchvision's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layers = nn.Sequential(ResBlock(16, 16, 1), ResBlock(16, 32, 2), ResBlock(32, 64, 2))
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = self.layers(F.relu(self.bn(self.conv(x)), inplace=True))
        return self.fc(x.mean((2, 3)))


class DLRM(nn.Module):
    """Tables with sparse gradients, their products, and two perceptrons."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(100 + 50 * i, 16, mode="sum", sparse=True) for i in range(4))
        self.bottom = nn.Sequential(nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 16))
        self.top = nn.Sequential(nn.Linear(16 + 10, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x):
        dense = self.bottom(x)
        keys = (x[:, :8].abs() * 1000).long().view(-1, 4, 2)
        rows = [table(keys[:, i] % table.num_embeddings) for i, table in enumerate(self.tables)]
        all = torch.stack([dense, *rows], 1)
        i, j = torch.triu_indices(5, 5, 1)
        return self.top(torch.cat([dense, (all @ all.transpose(1, 2))[:, i, j]], 1))


def _generator(step: int, rank: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * step + rank)


def vectors(step: int, rank: int = 0, size: int = 4):
    g = _generator(step, rank)
    return torch.randn(size, 96, generator=g), torch.randint(0, 10, (size,), generator=g)


def images(step: int, rank: int = 0, side: int = 32):
    g = _generator(step, rank)
    return torch.randn(4, 3, side, side, generator=g), torch.randint(0, 10, (4,), generator=g)


def tokens(step: int, rank: int = 0, length: int = 16):
    return torch.randint(5, 256, (4, length), generator=_generator(step, rank))


def loss_of_vectors(model, step, rank=0):
    x, y = vectors(step, rank)
    return F.cross_entropy(model(x).float(), y)


def loss_of_images(model, step, rank=0):
    x, y = images(step, rank, 16)
    return F.cross_entropy(model(x).float(), y)


def loss_of_tokens(model, step, rank=0):
    t = tokens(step, rank)
    return F.cross_entropy(model(t).flatten(0, 1).float(), t.flatten())


def loss_of_lm(model, step, rank=0):
    t = tokens(step, rank)
    return model(input_ids=t, labels=t).loss


def loss_of_masked(model, step, rank=0):
    t = tokens(step, rank)
    mask = torch.ones_like(t)
    mask[:, -3:] = 0
    return model(input_ids=t, attention_mask=mask, labels=t).loss


def loss_of_class(model, step, rank=0):
    t = tokens(step, rank)
    return model(input_ids=t, attention_mask=torch.ones_like(t), labels=torch.zeros(4, dtype=torch.long)).loss


def loss_of_vision(model, step, rank=0):
    return model(pixel_values=images(step, rank)[0], labels=torch.zeros(4, dtype=torch.long)).loss


def need_torchrun() -> None:
    """Skips a test where torchrun cannot work: Debian's PyTorch is built without libuv."""
    try:
        dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        raise unittest.SkipTest(str(error)) from None


@dataclass
class Kind:
    make: Callable[[], nn.Module]
    loss: Callable[..., torch.Tensor]
    units: list[Any] | None = None  # None: those that zero finds


def _hf(model: str, config: str, **values: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        try:
            import transformers
        except ModuleNotFoundError as error:
            raise unittest.SkipTest(str(error)) from None
        return getattr(transformers, model)(getattr(transformers, config)(vocab_size=256, **values))

    return make


_small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_still = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
_ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_lm = {**_small, **_ids, "max_position_embeddings": 64, "use_cache": False}

OWN = {
    "mlp": Kind(MLP, loss_of_vectors, [Block]),
    "shared": Kind(Shared, loss_of_vectors, [Block]),
    "tied_head": Kind(TiedHead, loss_of_tokens),
    "own_parameter": Kind(OwnParameter, loss_of_vectors),
    "branches": Kind(Branches, loss_of_vectors, ["Block"]),
    "by_data": Kind(ByData, loss_of_vectors, [Block]),
    "dicts": Kind(Dicts, loss_of_vectors),
    "in_place": Kind(InPlace, loss_of_vectors),
    "lstm": Kind(LSTM, loss_of_tokens),
    "attention": Kind(Attention, loss_of_tokens),
    "resnet": Kind(ResNet, loss_of_images),
    "dlrm": Kind(DLRM, loss_of_vectors),
}
_gpt2 = {
    "n_positions": 64,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "use_cache": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_gpt2 |= {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
_t5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0}
_bart = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
_bart |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "dropout": 0, "max_position_embeddings": 64}
TRANSFORMERS = {
    "gpt2": Kind(_hf("GPT2LMHeadModel", "GPT2Config", **_gpt2), loss_of_masked),
    "llama": Kind(_hf("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2, **_lm), loss_of_lm),
    "t5": Kind(_hf("T5ForConditionalGeneration", "T5Config", decoder_start_token_id=0, use_cache=False, **_t5), loss_of_lm),
    "bart": Kind(_hf("BartForConditionalGeneration", "BartConfig", use_cache=False, **_bart), loss_of_lm),
    "bert": Kind(_hf("BertForSequenceClassification", "BertConfig", **_small, **_still), loss_of_class),
    "albert": Kind(
        _hf("AlbertForMaskedLM", "AlbertConfig", embedding_size=16, classifier_dropout_prob=0, **_small, **_still),
        loss_of_lm,
        ["AlbertLayer"],
    ),
    "vit": Kind(_hf("ViTForImageClassification", "ViTConfig", image_size=32, patch_size=8, **_small, **_still), loss_of_vision),
    "mixtral": Kind(_hf("MixtralForCausalLM", "MixtralConfig", num_key_value_heads=2, num_local_experts=4, **_lm), loss_of_lm),
    "qwen3": Kind(
        _hf("Qwen3ForCausalLM", "Qwen3Config", num_key_value_heads=2, head_dim=8, tie_word_embeddings=True, **_lm),
        loss_of_lm,
    ),
    "mamba": Kind(
        _hf("MambaForCausalLM", "MambaConfig", hidden_size=32, state_size=4, num_hidden_layers=2, use_cache=False),
        loss_of_lm,
    ),
}
KINDS = OWN | TRANSFORMERS


def configuration(stage: int, **more: Any) -> dict[str, Any]:
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0, **more.pop("zero_optimization", {})}
    params = {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}
    optimizer = {"type": "AdamW", "params": params}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
        "optimizer": optimizer,
        "zero_optimization": zero,
        **more,
    }


def made(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return KINDS[kind].make().train()


def plain_losses(
    kind: str, steps: int, ranks: int = 1, micro: int = 1, half: bool = False, states: list[Any] | None = None, norms: list[float] | None = None
) -> list[list[float]]:
    """By step and rank. `half`: a loop in bf16 with fp32 masters. `states`: takes the weights after each step; `norms`: the gradient's
    norm."""
    master = made(kind)
    model = copy.deepcopy(master) if half else master
    if half:
        for p in model.parameters():
            p.data = p.data.bfloat16()
        model.register_forward_pre_hook(lambda _, args: tuple(a.bfloat16() if a.is_floating_point() else a for a in args))
    weights = [p for p in master.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for step in range(steps):
        losses.append([])
        for rank in range(ranks):
            for m in range(micro):
                loss = KINDS[kind].loss(model, step * micro + m, rank)
                (loss / ranks / micro).backward()
                losses[-1].append(loss.item())
        for p, q in zip(master.parameters(), model.parameters()) if half else ():
            p.grad, q.grad = None if q.grad is None else q.grad.float(), None
        for w in weights:  # no gradient counts as zero
            w.grad = torch.zeros_like(w) if w.grad is None else (w.grad.to_dense() if w.grad.is_sparse else w.grad)
        norm = torch.nn.utils.clip_grad_norm_(weights, 1.0)
        if norms is not None:
            norms.append(norm.item())
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for p, q in zip(master.parameters(), model.parameters()) if half else ():
                q.copy_(p)
        if states is not None:
            states.append({name: value.clone() for name, value in master.state_dict().items()})
    return losses
