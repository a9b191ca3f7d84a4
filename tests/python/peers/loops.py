"""What a training loop does: DeepSpeed's and Accelerate's tests of accumulation, clipping, precision, schedules and groups."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
import zero
from torch import nn
from torch.optim import lr_scheduler

from models import MLP, loss_of_vectors, vectors
from peers.forwards import Net
from peers.scenarios import close, optimizer_of, same_weights, scenario, seeded, sharded, train_both

FREE = {"free_order": True}


def both(**options: Any) -> tuple[zero.Engine, nn.Module, torch.optim.Optimizer]:
    """An MLP on an engine, the same one in plain PyTorch, and its optimizer."""
    engine, plain = sharded(seeded(MLP), **options), seeded(MLP)
    return engine, plain, optimizer_of(plain.parameters(), options.get("kind", "SGD"))


def step(engine: zero.Engine, plain: nn.Module, optimizer: Any, loss: Any) -> zero.StepInfo:
    engine.backward(loss(engine.model))
    info = engine.step()
    optimizer.zero_grad()
    loss(plain).backward()
    optimizer.step()
    return info


@scenario
def gradients_accumulated() -> None:
    """At each stage; a last step of fewer micro-steps, as at the end of an epoch; another number under no_sync's loop."""
    train_both(MLP, loss_of_vectors, micro=3, stages=(0, 1, 2, 3))
    train_both(MLP, loss_of_vectors, micro=2, kind="AdamW", gradient_accumulation_mode="every")
    engine, plain, optimizer = both(gradient_accumulation_steps=4)
    for n in (4, 2, 4):
        for i in range(n):
            engine.backward(loss_of_vectors(engine.model, i))
            engine.step(last=i == n - 1)
            (loss_of_vectors(plain, i) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    same_weights(engine, plain)


@scenario
def gradients_clipped() -> None:
    for micro in (1, 2):
        for limit in (0.1, 100.0):
            engine, plain, optimizer = both(gradient_clipping=limit, gradient_accumulation_steps=micro)
            for i in range(3):
                for m in range(micro):
                    engine.backward(loss_of_vectors(engine.model, micro * i + m))
                    info = engine.step()
                    (loss_of_vectors(plain, micro * i + m) / micro).backward()
                close(info.grad_norm, float(nn.utils.clip_grad_norm_(plain.parameters(), limit)), "norm before it is clipped")
                optimizer.step()
                optimizer.zero_grad()
            same_weights(engine, plain)


@scenario(refused="gradient_clipping in the configuration clips them")
def gradients_clipped_by_the_program() -> None:
    engine = both()[0]
    engine.backward(loss_of_vectors(engine.model, 0))
    nn.utils.clip_grad_norm_(engine.model.parameters(), 1.0)


@scenario
def losses_of_several_forwards() -> None:
    def loss(model: Any, batch: int) -> Any:
        x = vectors(batch)[0]
        return F.mse_loss(model(x), model(x.flip(0)).detach()) + model(-x).square().mean() * 0.1

    train_both(MLP, loss, options=FREE)
    train_both(MLP, lambda m, batch: F.cosine_embedding_loss(m(vectors(batch)[0]), m(vectors(9)[0]), torch.ones(4)), options=FREE)


@scenario(refused="free_order=True")
def losses_of_several_forwards_without_free_order() -> None:
    train_both(MLP, lambda model, batch: loss_of_vectors(model, batch) + loss_of_vectors(model, 9))


@scenario
def several_backwards_of_one_forward() -> None:
    engine, plain, optimizer = both(options=FREE)
    for i in range(3):
        for model in (engine.model, plain):
            y = model(vectors(i)[0])
            first, second = y.square().mean(), y.abs().mean()
            for loss, retain in ((first, True), (second, False)):
                engine.backward(loss, retain_graph=retain) if model is engine.model else loss.backward(retain_graph=retain)
        engine.step()
        optimizer.step()
        optimizer.zero_grad()
    same_weights(engine, plain)


@scenario(refused="is used outside of the forward and backward|second derivative")
def a_gradient_penalty() -> None:
    def loss(model: Any, batch: int) -> Any:
        x = vectors(batch)[0].requires_grad_()
        (grad,) = torch.autograd.grad(model(x).tanh().sum(), x, create_graph=True)
        return (grad.norm(2, 1) - 1).square().mean()

    train_both(MLP, loss)


@scenario
def gradients_of_inputs() -> None:
    """By torch.autograd.grad, for an adversarial batch, and in .grad of an input."""

    def loss(model: Any, batch: int) -> Any:
        x, y = vectors(batch)
        x.requires_grad_()
        (grad,) = torch.autograd.grad(F.cross_entropy(model(x), y), x)
        return F.cross_entropy(model((x + 0.1 * grad.sign()).detach()), y)

    train_both(MLP, loss)
    engine, plain, optimizer = both()
    xs = [vectors(0)[0].requires_grad_() for _ in range(2)]
    engine.backward(engine.model(xs[0]).square().mean())
    plain(xs[1]).square().mean().backward()
    close(xs[0].grad, xs[1].grad, "gradient of the input")


@scenario
def graphs_cut_in_parts() -> None:
    """States of a recurrent network go on, detached, to the next step; a part of the model is under no_grad."""
    states: dict[int, Any] = {}

    def forward(m: Any, t: Any) -> Any:
        y, state = m.rnn(m.wte(t), states.get(id(m)))
        states[id(m)] = tuple(s.detach() for s in state)
        with torch.no_grad():
            y = y + m.fixed(y)
        return m.out(y)

    from models import loss_of_tokens

    parts = lambda: {
        "wte": nn.Embedding(256, 32),
        "rnn": nn.LSTM(32, 32, batch_first=True),
        "fixed": nn.Linear(32, 32),
        "out": nn.Linear(32, 256),
    }
    train_both(lambda: Net(forward, **parts()), loss_of_tokens)


@scenario
def groups_of_parameters() -> None:
    """Other rates, and no decay for biases."""
    groups = [{"match": ["*bias"], "weight_decay": 0.0}, {"match": ["head.weight"], "lr": 1e-2}]
    engine, plain = sharded(seeded(MLP), kind="AdamW", param_groups=groups), seeded(MLP)
    named = dict(plain.named_parameters())
    biases = [p for name, p in named.items() if name.endswith("bias")]
    others = [p for name, p in named.items() if not name.endswith("bias") and name != "head.weight"]
    rows = [{"params": others}, {"params": biases, "weight_decay": 0.0}, {"params": [named["head.weight"]], "lr": 1e-2}]
    optimizer = optimizer_of(rows, "AdamW")
    for i in range(3):
        step(engine, plain, optimizer, lambda model: loss_of_vectors(model, i))
    same_weights(engine, plain, 2e-5)


@scenario
def schedules_of_rates() -> None:
    """By PyTorch's schedulers, and by hand."""
    kinds = {
        "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda k: min(1, (k + 1) / 3)),
        "cosine": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
        "chained": lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2]),
        "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=8),
        "cyclic": lambda o: lr_scheduler.CyclicLR(o, 1e-3, 1e-2, 2),
        "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    }
    for name, make in kinds.items():
        for kind in ("SGD", "AdamW"):
            engine, plain, optimizer = both(kind=kind)
            if "cycl" in name and kind == "SGD":  # the momentum follows the rate
                continue
            schedules = make(engine.optimizer), make(optimizer)
            for i in range(5):
                rate = optimizer.param_groups[0]["lr"]
                close(step(engine, plain, optimizer, lambda model: loss_of_vectors(model, i)).lr, rate, f"rate of {name}", 1e-7)
                for schedule in schedules:
                    schedule.step(*([1.0] if name == "plateau" else []))
            same_weights(engine, plain, 3e-5)

    engine, plain, optimizer = both()
    for i, rate in enumerate((0.1, 0.0, 0.5)):
        for o in (engine.optimizer, optimizer):
            o.param_groups[0]["lr"] = rate
        step(engine, plain, optimizer, lambda model: loss_of_vectors(model, i))
    same_weights(engine, plain)


@scenario
def averaged_weights() -> None:
    engine, plain, optimizer = both(ema={"decay": 0.9})
    average = torch.optim.swa_utils.AveragedModel(plain, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    average.update_parameters(plain)
    for i in range(4):
        step(engine, plain, optimizer, lambda model: loss_of_vectors(model, i))
        average.update_parameters(plain)
    with engine.averaged() as model, torch.no_grad():
        close(loss_of_vectors(model, 9), loss_of_vectors(average.module, 9), "loss with the averages")
    same_weights(engine, plain)


@scenario
def a_gradient_that_never_comes_is_zero() -> None:
    """PyTorch's optimizers skip a parameter without a gradient; with zero, decay and momentum act on it."""
    engine, plain, optimizer = both(kind="AdamW")
    loss = lambda model: model.blocks[0](vectors(0)[0]).square().mean()
    for model in (engine.model, plain):
        model.head.requires_grad_(True)
    engine.commit(vectors(0)[0])
    first = plain.head.weight.detach().clone()
    for _ in range(2):
        step(engine, plain, optimizer, loss)
    state = engine.state_dict()
    close(state["head.weight"], first * (1 - 1e-3 * 0.1) ** 2, "weight that decays", 1e-6)
    close(state["blocks.0.a.weight"], plain.blocks[0].a.weight.detach(), "weight with a gradient", 2e-5)


@scenario
def evaluations_between_and_within_steps() -> None:
    def evaluate(model: nn.Module) -> None:
        model.eval()
        with torch.no_grad():
            loss_of_vectors(model, 9)
        with torch.inference_mode():
            loss_of_vectors(model, 8)
        model.train()

    def loss(model: Any, batch: int) -> Any:
        loss = loss_of_vectors(model, batch)
        evaluate(model)
        return loss

    make = lambda: nn.Sequential(MLP(), nn.BatchNorm1d(10), nn.Dropout(0.2))
    train_both(make, loss_of_vectors, micro=2, between=evaluate)
    train_both(MLP, loss, micro=2)


@scenario
def a_generator_and_a_critic() -> None:
    """Two engines; the generator's gradient comes through the critic, whose own is dropped."""
    make = lambda: nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 96))
    engines, plain = [sharded(seeded(make, i)) for i in range(2)], [seeded(make, i) for i in range(2)]
    optimizers = [optimizer_of(m.parameters()) for m in plain]
    for i in range(3):
        for turn in (1, 0):
            for models in (plain, [e.model for e in engines]):
                made = models[0](vectors(i)[0])
                loss = models[1](made if turn == 0 else made.detach()).square().mean() * (1 - 2 * turn) * 0.1
                own = optimizers if models is plain else [e.optimizer for e in engines]
                own[turn].zero_grad()
                loss.backward() if models is plain else engines[turn].backward(loss)
                own[turn].step()
                own[1 - turn].zero_grad()
    for engine, model in zip(engines, plain, strict=True):
        same_weights(engine, model)


@scenario
def a_teacher_beside_the_student() -> None:
    """A teacher on an engine of its own, without gradients; then one that is a part of the model, frozen."""
    teacher = sharded(seeded(MLP, 5))
    plain_teacher = seeded(MLP, 5)

    def loss(model: Any, batch: int) -> Any:
        with torch.no_grad():
            right = (plain_teacher if isinstance(model, MLP) and not model._forward_hooks else teacher.model)(vectors(batch)[0])
        return F.kl_div(model(vectors(batch)[0]).log_softmax(-1), right.softmax(-1), reduction="batchmean")

    train_both(MLP, loss)

    def pair() -> nn.Module:
        def forward(m: Any, x: Any) -> Any:
            with torch.no_grad():
                right = m.teacher(x)
            return m.head(m.blocks[0](x)) - right

        return Net(forward, teacher=MLP().requires_grad_(False))

    train_both(pair, loss_of_vectors)


@scenario
def steps_skipped_in_fp16() -> None:
    """A loss of infinity is skipped, halves the scale, and leaves weights as they are."""
    engine = sharded(seeded(MLP), fp16={"enabled": True, "initial_scale_power": 8, "hysteresis": 1})
    engine.backward(loss_of_vectors(engine.model, 0))
    assert not engine.step().skipped
    before = engine.state_dict()
    engine.backward(loss_of_vectors(engine.model, 0) * float("inf"))
    assert engine.step().skipped
    assert all(torch.equal(before[name], value) for name, value in engine.state_dict().items())
    engine.backward(loss_of_vectors(engine.model, 1))
    info = engine.step()
    assert (info.skipped, info.loss_scale) == (False, 128), info


@scenario
def mixed_precision_with_buffers_in_fp32() -> None:
    """bf16 weights with fp32 masters: the losses are those of a model in bf16; a buffer keeps its type and its digits."""
    exact = 1 + 2**-20

    def make() -> nn.Module:
        def forward(m: Any, x: Any) -> Any:
            assert m.scale.dtype == torch.float32 and float(m.scale[0]) == exact
            return m.head(m.blocks[0](x * m.scale)).float()

        model = Net(forward)
        model.register_buffer("scale", torch.full((96,), exact))
        return model

    engine, plain = sharded(seeded(make), bf16={"enabled": True}), seeded(make)
    half = copy.deepcopy(plain)
    half.blocks.bfloat16(), half.head.bfloat16()
    half.blocks[0].register_forward_pre_hook(lambda module, args: (args[0].bfloat16(),))
    expected, got = loss_of_vectors(half, 0), loss_of_vectors(engine.model, 0)
    close(got, expected, "loss in bf16", 1e-6)
    engine.backward(got)
    expected.backward()
    grads = [p.grad.float() for p in half.parameters() if p.grad is not None]
    close(engine.step().grad_norm, float(nn.utils.get_total_norm(grads)), "norm in bf16", 1e-4)


@scenario
def a_loop_of_deepspeed() -> None:
    """Data and a schedule; the engine's backward, and the optimizer's step."""
    data = [(vectors(i, size=1)[0][0], vectors(i, size=1)[1][0]) for i in range(16)]
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
    }
    make = lambda o: lr_scheduler.StepLR(o, 2)
    engine = zero.fully_shard(seeded(MLP), config)
    schedule = make(engine.optimizer)
    plain = seeded(MLP)
    theirs = optimizer_of(plain.parameters())
    their_schedule = make(theirs)
    for x, y in torch.utils.data.DataLoader(data, batch_size=4):
        engine.backward(F.cross_entropy(engine(x), y))
        engine.optimizer.step()
        schedule.step()
        F.cross_entropy(plain(x), y).backward()
        theirs.step()
        theirs.zero_grad()
        their_schedule.step()
    assert engine.steps == 4
    same_weights(engine, plain)
    engine.close()
