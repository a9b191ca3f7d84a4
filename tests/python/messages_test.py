"""Each mistake of the page "What is refused" of the package's README.md gets the answer that stands there, word for word."""

import contextlib
import copy
import logging
import os
import re
import tempfile
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from models import MLP, configuration, loss_of_vectors, vectors
from torch import nn
from torch.utils.checkpoint import checkpoint

import zero

PAGE = Path(__file__).parents[2].joinpath("tools/python/README.md").read_text().partition("## What is refused")[2].partition("\n## ")[0]
PARTS = r"^\| (?P<mistake>[^|]+) \| (?P<answer>.+) \|$"
ROWS = {row["mistake"]: re.findall(r"`([^`]{20,})`", row["answer"]) for row in re.finditer(PARTS, PAGE, re.MULTILINE)}
del ROWS["Mistake"]
# Those that need several ranks or a GPU, by the test that has them.
ELSEWHERE = {
    "a forward runs on another CUDA stream than the one at `fully_shard`": "cuda_test.py",
    "the model moves to a GPU after `fully_shard`": "cuda_test.py",
    "a rank dies": "ranks_test.py",
    "a rank ends by an exception": "ranks_test.py",
    "parameters on the meta device are replaced after `load_pretrained`": "weights_test.py",
    "Ctrl-C while a rank waits for others": "ranks_test.py",
    "the same through a view, in a PyTorch that lets nobody name the parameter, such as Debian's": "guard_test.py",
    "Ctrl-C while the engine learns the model": "interrupts_test.py",
    "an adapter other than LoRA is on the meta device": "weights_test.py",
    "a model is made again after `load_pretrained`": "weights_test.py",
}
MISTAKES = {}


def mistake(text):
    return lambda function: MISTAKES.setdefault(text, function)


def made(model=None, free_order=False, stage=3, **config):
    torch.manual_seed(0)
    model = model or MLP()
    return model, zero.fully_shard(model, configuration(stage, **config), free_order=free_order)


def train(model, engine, steps=1):
    for step in range(steps):
        engine.backward(loss_of_vectors(model, step))
        engine.step()


def trained(*args, **kwargs):
    model, engine = made(*args, **kwargs)
    train(model, engine)
    return model, engine


class Odd(MLP):
    """A model whose forward is given."""

    def __init__(self, forward) -> None:
        super().__init__()
        self.run = forward

    def forward(self, x):
        return self.run(self, x)


@mistake("a parameter is used outside of its unit, or the model is copied")
def _():
    model, _ = trained()
    return [lambda: model.blocks[0].a.weight.sum(), lambda: copy.deepcopy(model)]


@mistake("a forward after the last backward of a step")
def _():
    model, engine = made()
    engine.backward(loss_of_vectors(model, 0))
    loss_of_vectors(model, 1)


@mistake("`loss.backward()` in fp16")
def _():
    model, _ = made(fp16={"enabled": True})
    loss_of_vectors(model, 0).backward()


@mistake("a loss of `engine.scaled` is scaled again")
def _():
    model, engine = made(fp16={"enabled": True})
    loss = engine.scaled(loss_of_vectors(model, 0)) / 2
    (loss + loss).backward()
    return [lambda: engine.backward(loss), lambda: engine.scaled(loss)]


@mistake("`clip_grad_norm_`, or another look at `.grad`")
def _():
    model, engine = made()
    engine.backward(loss_of_vectors(model, 0))
    return [lambda: nn.utils.clip_grad_norm_(model.parameters(), 1), lambda: model.head.weight.grad.sum()]


@mistake("two forwards and a loss of both, or a backward of the first one, whose pass the second has dropped")
def _():
    model, engine = made()
    first, second = loss_of_vectors(model, 0), loss_of_vectors(model, 1)
    return [lambda: engine.backward(first + second), lambda: engine.backward(first)]


@mistake("`loss.backward()` of a loss that reads nothing of the model's forward, such as one of a parameter alone")
def _():
    model = Odd(lambda m, x: (MLP.forward(m, x), m.scale.view(1))[0])
    model.scale = nn.Parameter(torch.ones(1))
    _, engine = made(model)
    result = model(vectors(0)[0])  # a loss of its own waits
    model.scale.backward(torch.ones(1))
    engine.step()
    del result


@mistake("one loss of two engines in fp16, whose loss scales differ")
def _():
    (a, engine), (b, _) = (made(fp16={"enabled": True, "initial_scale_power": power}) for power in (4, 8))
    engine.backward(loss_of_vectors(a, 0) + loss_of_vectors(b, 0))


@mistake("an engine is used in a forked child")
def _():
    model, engine = trained()
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            train(model, engine)
        except zero.ZeroError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.wait()
    raise RuntimeError(os.read(reader, 1000).decode())


@mistake("a forward depends on its data, and parameters are on the meta device")
def _():
    with torch.device("meta"):
        model = Odd(lambda m, x: MLP.forward(m, x) if x.sum() > 0 else MLP.forward(m, -x))
    train(*made(model))


@mistake("a checkpoint around several units")
def _():
    model = Odd(lambda m, x: m.head(checkpoint(lambda t: m.blocks[1](m.blocks[0](t)), x, use_reentrant=False)))
    train(*made(model))


@mistake("a module is called later or more often than before")
def _():
    model, engine = trained(Odd(MLP.forward))
    model.run = lambda m, x: MLP.forward(m, MLP.forward(m, x) @ torch.ones(10, 96))
    train(model, engine)


@mistake("a forward changes a parameter in place (an embedding's `max_norm`, first values from the data)")
def _():
    model = Odd(lambda m, x: MLP.forward(m, x + F.embedding(torch.arange(4), m.wte.weight, max_norm=0.1)))
    model.wte = nn.Embedding(4, 96)
    train(*made(model))


@mistake("two parameters share memory, as after `head.weight.data = embedding.weight.data`")
def _():
    model = nn.ModuleDict({"embedding": nn.Linear(8, 8), "head": nn.Linear(8, 8)})
    model["head"].weight.data = model["embedding"].weight.data
    zero.fully_shard(model, configuration(3)).commit()


@mistake("`nesterov`, `amsgrad` or another switch of `param_groups` changes")
def _():
    optimizer = {"type": "SGD", "params": {"lr": 1e-2, "momentum": 0.9, "nesterov": True}}
    model, engine = made(optimizer=optimizer)
    engine.optimizer.param_groups[0]["nesterov"] = False
    train(model, engine)


@mistake("below stage 3 a parameter is changed outside of `zero.gathered`")
def _():
    model, engine = trained(stage=1)
    model.head.weight.data.clamp_(-0.1, 0.1)


@mistake("`zero.gathered` inside of a forward that does not use the parameter")
def _():
    model, engine = trained()
    model.blocks[1].register_forward_pre_hook(lambda *_: zero.gathered(model.head.weight).__enter__())
    train(model, engine)


@mistake("a parameter is unfrozen that was frozen at the first forward")
def _():
    model, engine = made()
    model.head.bias.requires_grad_(False)
    train(model, engine)
    model.head.bias.requires_grad_(True)
    train(model, engine)


@mistake("`optimizer=` beside an optimizer of the configuration")
def _():
    model = MLP()
    zero.fully_shard(model, configuration(3), optimizer=torch.optim.AdamW(model.parameters()))


@mistake("the engine is parked, or its averages are evaluated, within a step")
def _():
    model, engine = made(gradient_accumulation_steps=2)
    engine.backward(loss_of_vectors(model, 0))
    engine.park()


@mistake("`add_param_group`")
def _():
    made()[1].optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


@mistake("`optimizer.load_state_dict` of another step's state, or of one with moments")
def _():
    model, engine = trained()
    plain = torch.optim.AdamW(MLP().parameters())
    before = engine.optimizer.state_dict()
    train(model, engine)
    return [lambda: engine.optimizer.load_state_dict(before), lambda: engine.optimizer.load_state_dict(plain.state_dict())]


@mistake("an engine is copied or pickled")
def _():
    copy.deepcopy(made()[1])


@mistake("a lazy module has no shape yet")
def _():
    model = nn.Sequential(nn.LazyLinear(10))
    train(model, zero.fully_shard(model, configuration(3)))


@mistake("the buffers' file of a checkpoint is damaged or missing")
def _():
    model = Odd(MLP.forward)
    model.register_buffer("seen", torch.zeros(1))
    _, engine = trained(model)
    with tempfile.TemporaryDirectory() as place:
        engine.save(place)
        next(Path(place).glob("*/program.bin")).unlink()
        engine.load(place)


@mistake("parameters that no loss uses")
def _():
    train(*made(Odd(lambda m, x: m.head(m.blocks[0](x)))))


@mistake("parameters are added, replaced or given other `.data` after the first forward")
def _():
    model, engine = trained()
    model.head.scale = nn.Parameter(torch.zeros(10))
    train(model, engine)


@mistake("an engine is used after `close()`; a model has two")
def _():
    model, engine = trained()

    def closed():
        engine.close()
        engine.step()

    return [lambda: zero.fully_shard(model, configuration(3)), closed]


@mistake("a backward under compiled autograd")
def _():
    import torch._dynamo

    model, engine = made()
    torch._dynamo.config.compiled_autograd = True
    try:
        train(model, engine)
    finally:
        torch._dynamo.config.compiled_autograd = False


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """What is raised, warned and logged inside."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("zero").addHandler(handler)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            yield said
        except Exception as error:  # noqa: BLE001
            said.append(str(error))
    said += [str(w.message) for w in warned]
    logging.getLogger("zero").removeHandler(handler)


class MessagesTest(unittest.TestCase):
    def test_page(self):
        self.assertEqual(set(ROWS), MISTAKES.keys() | ELSEWHERE.keys())
        for text, program in MISTAKES.items():
            with heard() as said:
                for part in program() or ():
                    with heard() as more:
                        part()
                    said += more
            for sentence in ROWS[text]:
                with self.subTest(text):
                    self.assertIn(sentence, " | ".join(said))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
