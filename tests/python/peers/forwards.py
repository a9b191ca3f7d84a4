"""What modules, their inputs and their results may be: FSDP's tests of wrapping, mixed precision, hooks and checkpoints."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from models import KINDS, MLP, Attention, Block, loss_of_images, loss_of_tokens, loss_of_vectors, vectors
from peers.scenarios import close, scenario, seeded, sharded, train_both


class Net(MLP):
    """An MLP whose forward is a function of the model."""

    def __init__(self, forward: Any = None, **modules: Any) -> None:
        super().__init__()
        self.function = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs) if self.function else super().forward(*args, **kwargs)


class Language(nn.Module):
    def __init__(self, tied: bool = False, **more: Any) -> None:
        super().__init__()
        self.wte, self.blocks = nn.Embedding(256, 32, **more), nn.ModuleList(Block(32) for _ in range(2))
        self.head = nn.Linear(32, 256, bias=False)
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, t: Any) -> Any:
        x = self.wte(t)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@scenario
def tied_embeddings() -> None:
    """By assignment, and where a function uses the weights of a module that is not called."""
    train_both(lambda: Language(tied=True), loss_of_tokens, stages=(0, 1, 2, 3))

    train_both(KINDS["tied_head"].make, loss_of_tokens)

    class Lends(Block):
        def forward(self, x: Any) -> Any:
            return x + F.linear(F.relu(F.linear(x, self.a.weight, self.a.bias)), self.b.weight)

    train_both(lambda: nn.Sequential(nn.Sequential(Lends(96), Lends(96)), nn.Linear(96, 10)), loss_of_vectors, units=None)


@scenario
def shared_modules() -> None:
    """Called several times in a forward; with two parents."""
    train_both(KINDS["shared"].make, loss_of_vectors, units=[Block])
    train_both(KINDS["shared"].make, loss_of_vectors)

    def make() -> nn.Module:
        model = MLP()
        model.blocks[2].a = model.blocks[0].a
        return model

    train_both(make, loss_of_vectors)


@scenario
def units_inside_of_units_and_in_dictionaries() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Sequential(Block(96), nn.Sequential(Block(96), Block(96))), nn.Linear(96, 10))

    for units in (None, [Block], [nn.Sequential], [nn.Linear]):
        train_both(make, loss_of_vectors, units=units)

    def make() -> nn.Module:
        def forward(model: Any, x: Any) -> Any:
            return model.head(model.parts["b"](x) + model.parts["a"](x))

        return Net(forward, parts=nn.ModuleDict({"a": Block(96), "b": Block(96), "never": Block(96)}))

    train_both(make, loss_of_vectors)


@scenario
def parameters_in_lists_and_dictionaries() -> None:
    def make() -> nn.Module:
        def forward(model: Any, x: Any) -> Any:
            for weight in model.weights:
                x = F.relu(x @ weight) + model.shifts["a"]
            return model.head(x * model.shifts["b"])

        weights = nn.ParameterList(torch.randn(96, 96) / 10 for _ in range(3))
        return Net(forward, weights=weights, shifts=nn.ParameterDict({"a": torch.zeros(96), "b": torch.ones(96)}))

    train_both(make, loss_of_vectors)


@scenario
def a_module_unused_in_some_steps() -> None:
    """Also in the first one, which gives the order; by a number of the batch, and at random."""

    def make() -> nn.Module:
        return Net(lambda model, x, use: model.head(model.blocks[1](x) if use else model.blocks[0](x)))

    def loss(model: Any, batch: int) -> Any:
        x, y = vectors(batch)
        return F.cross_entropy(model(x, batch % 2), y)

    train_both(make, loss, steps=5)

    def forward(model: Any, x: Any) -> Any:
        for block in model.blocks:
            x = block(x) if torch.rand([]) < 0.6 else x
        return model.head(x)

    train_both(lambda: Net(forward), loss_of_vectors, steps=6)


@scenario
def experts_chosen_by_the_data() -> None:
    def forward(model: Any, x: Any) -> Any:
        weights, chosen = model.gate(x).softmax(-1).topk(2)
        y = torch.zeros_like(x)
        for i, expert in enumerate(model.blocks):
            rows, slot = (chosen == i).nonzero(as_tuple=True)
            if len(rows):
                y = y.index_add(0, rows, expert(x[rows]) * weights[rows, slot, None])
        return model.head(y)

    train_both(lambda: Net(forward, gate=nn.Linear(96, 3)), loss_of_vectors, steps=4)


class Named(NamedTuple):
    logits: Any
    hidden: Any


@dataclass
class Data:
    logits: Any
    more: Any = None


def leaves(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        yield value
    children = value.values() if isinstance(value, dict) else vars(value).values() if isinstance(value, Data) else value
    for child in () if value is None or isinstance(value, torch.Tensor) else children:
        yield from leaves(child)


@scenario
def results_of_any_class() -> None:
    for wrap in (
        Named,
        Data,
        lambda a, b: {"logits": a, "list": [b]},
        lambda a, b: (a, {"hidden": (b,)}),
        lambda a, b: Data(None, Named(a, b)),
    ):

        def forward(model: Any, x: Any, wrap: Any = wrap) -> Any:
            hidden = model.blocks[1](model.blocks[0](x))
            return wrap(model.head(hidden), hidden)

        def loss(model: Any, batch: int) -> Any:
            x, y = vectors(batch)
            got = model(x)
            return F.cross_entropy(next(t for t in leaves(got) if t.shape[-1] == 10), y)

        train_both(lambda: Net(forward), loss)


@scenario
def results_of_which_the_loss_uses_some() -> None:
    def forward(model: Any, x: Any) -> Any:
        first = model.blocks[0](x)
        return first, model.blocks[1](first), model.head(model.blocks[2](first))

    def loss(model: Any, batch: int) -> Any:
        results = model(vectors(batch)[0])
        return results[batch % 3].square().mean()

    train_both(lambda: Net(forward), loss, steps=4)


@scenario
def inputs_of_any_kind() -> None:
    """Keywords alone, None, numbers, strings, nested lists; other sizes in each step."""

    def forward(model: Any, *, batch: Any, scale: float = 1.0, mode: str = "", mask: Any = None) -> Any:
        x = batch["x"][0] * scale
        return model.head(model.blocks[0](x if mask is None else x * mask) if mode == "one" else x)

    def loss(model: Any, batch: int) -> Any:
        x, y = vectors(batch)
        return F.cross_entropy(model(batch={"x": [x], "y": None}, scale=0.5, mode="one"), y)

    train_both(lambda: Net(forward), loss)

    def loss(model: Any, batch: int) -> Any:
        x, y = vectors(batch, size=1 + 3 * batch)
        return F.cross_entropy(model(x), y)

    train_both(MLP, loss, steps=4)


@scenario
def hooks_that_change_inputs_and_results() -> None:
    def make() -> nn.Module:
        model = MLP()
        model.blocks[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        model.blocks[1].register_forward_pre_hook(lambda module, args, kwargs: ((args[0] + 1,), kwargs), with_kwargs=True)
        model.blocks[1].register_forward_hook(lambda module, args, y: y * module.b.bias.exp())
        model.register_forward_pre_hook(lambda module, args: (args[0].flip(0).flip(0) * 0.5,))
        model.register_forward_hook(lambda module, args, y: y / 2)
        return model

    train_both(make, loss_of_vectors)


@scenario
def hooks_of_the_backward() -> None:
    """Of modules, of tensors and of parameters, before and after gradients are accumulated; they see and change gradients."""
    seen: list[list[Any]] = []

    def make() -> nn.Module:
        model, rows = MLP(), []
        seen.append(rows)
        model.blocks[0].register_full_backward_hook(lambda module, to, of: (to[0] if to[0] is None else to[0] * 2,))
        model.blocks[1].register_full_backward_pre_hook(lambda module, of: (of[0] / 2,))
        model.blocks[2].register_forward_hook(
            lambda module, args, y: y.register_hook(lambda grad: rows.append(grad.norm()) or grad * 3) and None
        )
        model.head.weight.register_hook(lambda grad: grad * 0.5)
        model.blocks[1].a.bias.register_hook(lambda grad: rows.append(grad.norm()))
        return model

    train_both(make, loss_of_vectors)
    for i in range(0, len(seen), 2):
        close(torch.stack(seen[i]), torch.stack(seen[i + 1]), "gradients that hooks see")

    norms: list[Any] = []

    def make() -> nn.Module:
        model = MLP()
        model.head.weight.register_post_accumulate_grad_hook(lambda p: norms.append(p.grad.norm()))
        return model

    train_both(make, loss_of_vectors, stages=(3,))
    close(torch.stack(norms[::2]), torch.stack(norms[1::2]), "gradients that hooks see")


@scenario
def frozen_parameters() -> None:
    """The first units, some parameters of a unit, all but biases, and the last unit."""
    frozen = (lambda n: "blocks.0" in n, lambda n: n.endswith("a.weight"), lambda n: "weight" in n, lambda n: "head" in n)
    for is_frozen in frozen:

        def make(is_frozen: Any = is_frozen) -> nn.Module:
            model = MLP()
            for name, p in model.named_parameters():
                p.requires_grad_(not is_frozen(name))
            return model

        train_both(make, loss_of_vectors)


@scenario
def parametrizations_of_weights() -> None:
    def make() -> nn.Module:
        model = MLP()
        parametrizations.weight_norm(model.blocks[0].a)
        parametrizations.spectral_norm(model.blocks[1].b)
        parametrizations.orthogonal(model.head)
        return model

    train_both(make, loss_of_vectors)


@scenario
def convolutions_and_statistics_of_batch_norms() -> None:
    engine, plain = train_both(KINDS["resnet"].make, loss_of_images)
    for model in (engine.model, plain):
        model.eval()
    with torch.no_grad():
        close(loss_of_images(engine.model, 9), loss_of_images(plain, 9), "loss of an evaluation", 1e-4)

    def make() -> nn.Module:
        layers = (
            nn.Conv2d(3, 8, 3, groups=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(8, 8, 3, 2),
            nn.InstanceNorm2d(8, True),
        )
        model = nn.Sequential(*layers, nn.PReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))
        return model.to(memory_format=torch.channels_last)

    train_both(make, loss_of_images)


@scenario
def dropout_with_the_same_numbers() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Sequential(Block(96), nn.Dropout(0.3), Block(96), nn.Dropout1d(0.2)), nn.Linear(96, 10))

    train_both(make, loss_of_vectors)
    train_both(
        lambda: Net(lambda m, x: m.head(checkpoint(lambda y: F.dropout(m.blocks[0](y), 0.4), x, use_reentrant=False))), loss_of_vectors
    )


@scenario
def recurrent_networks_and_attention_of_torch() -> None:
    for kind in (nn.LSTM, nn.GRU):

        def make(kind: Any = kind) -> nn.Module:
            return Net(
                lambda m, t: m.out(m.rnn(m.wte(t))[0]),
                wte=nn.Embedding(256, 32),
                rnn=kind(32, 16, 2, bidirectional=True),
                out=nn.Linear(32, 256),
            )

        train_both(make, loss_of_tokens, stages=(3,))

    def forward(model: Any, t: Any) -> Any:
        x, h, c, seen = model.wte(t), torch.zeros(4, 32), torch.zeros(4, 32), []
        for i in range(x.shape[1]):
            h, c = model.cell(x[:, i], (h, c))
            seen.append(h)
        return model.out(torch.stack(seen, 1))

    train_both(
        lambda: Net(forward, wte=nn.Embedding(256, 32), cell=nn.LSTMCell(32, 32), out=nn.Linear(32, 256)), loss_of_tokens, stages=(3,)
    )

    class Translates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.both, self.out = (
                nn.Embedding(256, 32),
                nn.Transformer(32, 4, 1, 1, 64, 0.1, batch_first=True),
                nn.Linear(32, 256),
            )

        def forward(self, t: Any) -> Any:
            mask = nn.Transformer.generate_square_subsequent_mask(t.shape[1])
            return self.out(self.both(self.wte(t), self.wte(t.flip(1)), tgt_mask=mask))

    train_both(Attention, loss_of_tokens, stages=(3,))
    train_both(Translates, loss_of_tokens, stages=(3,))


@scenario
def parameters_of_unusual_shapes() -> None:
    """Many dimensions, none, no elements, one element; not contiguous."""

    def make() -> nn.Module:
        def forward(m: Any, x: Any) -> Any:
            x = x @ m.turned * m.scalar + m.many.sum((0, 1, 2, 3, 4, 5, 6)).sum() * m.single
            return m.head(m.blocks[0](torch.cat([x, m.nothing.expand(4, 0)], 1)))

        model = Net(forward)
        model.turned, model.nothing = nn.Parameter(torch.randn(96, 96).t() / 10), nn.Parameter(torch.empty(1, 0))
        model.many, model.scalar, model.single = (
            nn.Parameter(torch.randn(1, 2, 1, 2, 1, 2, 1, 2) / 10),
            nn.Parameter(torch.tensor(1.5)),
            nn.Parameter(torch.ones(1)),
        )
        return model

    train_both(make, loss_of_vectors)


@scenario
def embeddings_with_sparse_gradients() -> None:
    def make() -> nn.Module:
        return Language(sparse=True, padding_idx=7)

    train_both(make, loss_of_tokens)
    train_both(KINDS["dlrm"].make, loss_of_vectors)


@scenario
def checkpoints_of_blocks_and_around_others() -> None:
    """Reentrant or not, nested, and with a choice of what they keep."""

    def ways(m: Any, x: Any) -> Any:
        x = checkpoint(m.blocks[0], x, use_reentrant=False)
        x = checkpoint(m.blocks[1], x, use_reentrant=True)
        return m.head(checkpoint(m.blocks[2], x, use_reentrant=False, preserve_rng_state=False))

    def nested(m: Any, x: Any) -> Any:
        return m.head(checkpoint(lambda y: m.blocks[1](checkpoint(m.blocks[0], y, use_reentrant=False)), x, use_reentrant=False))

    train_both(lambda: Net(ways), loss_of_vectors)
    train_both(lambda: Net(nested), loss_of_vectors, options={"free_order": True})

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE

    def forward(m: Any, x: Any) -> Any:
        for block in m.blocks:
            x = checkpoint(block, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy))
        return m.head(x)

    train_both(lambda: Net(forward), loss_of_vectors)


@scenario
def autocast_and_a_part_without_it() -> None:
    def forward(m: Any, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            x = m.blocks[1](m.blocks[0](x))
            with torch.autocast("cpu", enabled=False):
                x = m.blocks[2](x.float())
            return m.head(x)

    train_both(lambda: Net(forward), loss_of_vectors, tolerance=1e-4)


@scenario(refused="is used outside of the forward")
def functional_call_with_the_models_own_parameters() -> None:
    engine = sharded(seeded(MLP))
    engine.backward(loss_of_vectors(engine.model, 0))
    engine.step()
    state = {name: p * 1 for name, p in engine.model.named_parameters()}
    torch.func.functional_call(engine.model, state, (vectors(0)[0],))
