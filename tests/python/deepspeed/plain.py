"""A program of a loop and a model of its own: what deepspeed.initialize returns, and how it behaves. All assertions hold with DeepSpeed."""

import argparse
import base64
import importlib
import json
import os
from functools import partial
from types import SimpleNamespace

import deepspeed
import torch
import torch.distributed as dist
from cases import configuration, shared_directory
from torch import nn

ADAMW = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1, "torch_adam": True}}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=16, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, 8)
        self.width = width

    def forward(self, x, y):
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x), y)


def batch(number, rank):
    generator = torch.Generator().manual_seed(1000 * rank + number)
    return torch.randn(4, 16, generator=generator), torch.randint(0, 8, (4,), generator=generator)


def train(engine, steps, first=0):
    """Losses, what backward returns, norms, rates."""
    rows = []
    for step in range(first, first + steps):
        loss = engine(*batch(step, dist.get_rank()))
        scaled = engine.backward(loss)
        engine.step()
        norm = engine.get_global_grad_norm()
        rows.append([loss.item(), scaled.item(), None if norm is None else float(norm), *engine.get_lr()])
    return rows


def made(stage, model=None, optimizer=ADAMW, **keys):
    """An engine by itself."""
    deepspeed.init_distributed()
    config = configuration(stage, **({"optimizer": optimizer} if optimizer else {}), **keys)
    model = model or Net()
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def stages():
    """With accumulation, clipping and a schedule of the file."""
    found = []
    for stage in range(4):
        schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 4}}
        engine = made(stage, gradient_accumulation_steps=2, gradient_clipping=0.5, scheduler=schedule)
        assert engine.get_global_grad_norm() is None
        assert (engine.train_batch_size(), engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()) == (16, 4, 2)
        assert engine.zero_optimization_stage() == stage
        found.append(train(engine, 8))
        assert (engine.global_steps, engine.micro_steps, engine.skipped_steps, engine.global_samples) == (4, 8, 0, 64)
        engine.destroy()
    return found


def module():
    """The engine is an nn.Module around the model, and its names are the model's where it has none."""
    engine = made(2)
    assert isinstance(engine, nn.Module) and isinstance(engine.module, Net) and engine.width == 16
    assert [name.removeprefix("module.") for name, _ in engine.named_parameters()] == [name for name, _ in Net().named_parameters()]
    assert list(engine.state_dict())[0] == "module.blocks.0.norm.weight"
    assert list(engine.module_state_dict()) == list(Net().state_dict())
    assert engine.optimizer_name() == "adamw"
    assert engine.config["train_micro_batch_size_per_gpu"] == 4 and not hasattr(engine, "no_such_name")
    engine.eval()
    assert not engine.module.training
    engine.train()
    engine.tput_timer.update_epoch_count()
    return train(engine, 2)


def configurations():
    """A file, its text in base64, a dictionary; given as config, config_params, or in args."""
    config = configuration(1, optimizer=ADAMW)
    del config["steps_per_print"]
    path = os.path.join(shared_directory(), f"config{os.getpid()}.json")
    with open(path, "w") as file:
        json.dump(config, file)
    text = base64.urlsafe_b64encode(json.dumps(config).encode()).decode()
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    args = parser.parse_args(["--deepspeed", "--deepspeed_config", path])
    found = []
    for keys in ({"config": path}, {"config": text}, {"config_params": config}, {"args": args}):
        model = Net()
        engine, optimizer, loader, scheduler = deepspeed.initialize(model=model, model_parameters=model.parameters(), **keys)
        assert optimizer is engine.optimizer and loader is None and scheduler is None
        found.append(train(engine, 1))
    assert all(rows == found[0] for rows in found)
    return found[0]


def boundaries():
    """The program says which backward is the last of a step; a loss that it has divided itself."""
    found = []
    for stage in (1, 2, 3):
        engine = made(stage, gradient_accumulation_steps=2)
        for step, count in enumerate((3, 1, 2)):
            for i in range(count):
                engine.set_gradient_accumulation_boundary(i == count - 1)
                loss = engine(*batch(10 * step + i, dist.get_rank()))
                assert torch.equal(engine.backward(loss / count, scale_wrt_gas=False), loss / count)
            engine.step()
            found.append(float(engine.get_global_grad_norm()))
        assert engine.global_steps == 3
        found.append(train(engine, 1)[0][0])
    return found


def loaders():
    """training_data: this rank's micro-batches, shuffled."""
    rows = [batch(i, 7) for i in range(10)]
    data = [(x[0], y[0]) for x, y in rows]
    model = Net()
    config = configuration(1, optimizer=ADAMW, train_micro_batch_size_per_gpu=2)
    engine, _, loader, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), training_data=data, config=config)
    assert len(loader) == 3
    found = []
    for x, y in loader:
        loss = engine(x, y)
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    endless = iter(deepspeed.utils.RepeatingLoader(loader))
    assert len([next(endless) for _ in range(7)]) == 7
    return found


def checkpoints():
    """Tags, `latest`, the program's own state; what is returned."""
    found = []
    for stage in (1, 3):
        place = shared_directory()
        schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 8}}
        engine = made(stage, scheduler=schedule)
        assert engine.load_checkpoint(place) == (None, None)
        raises("", lambda: engine.load_checkpoint(place, "no such tag"))
        train(engine, 2)
        assert engine.save_checkpoint(place, client_state={"epoch": 3})
        assert {"global_step2", "latest", "zero_to_fp32.py"} <= set(os.listdir(place))
        after = train(engine, 2, 2)
        engine.save_checkpoint(place, tag="mine", save_latest=False)
        engine.destroy()
        again = made(stage, Net(seed=9), scheduler=schedule)
        path, client = again.load_checkpoint(place)
        own = f"zero_pp_rank_{dist.get_rank()}_" if stage == 3 else ""
        assert path == os.path.join(place, "global_step2", f"{own}mp_rank_00_model_states.pt"), path
        assert client["epoch"] == 3 and (again.global_steps, again.global_samples) == (2, 16), client
        rows = train(again, 2, 2)
        assert rows == after, (rows, after)
        found += rows
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        state = get_fp32_state_dict_from_zero_checkpoint(place, "mine")
        assert state.keys() == Net().state_dict().keys()
        plain = Net(seed=4)
        plain.load_state_dict(state)
        found.append(plain(*batch(50, 0)).item())
        module_only = made(stage, Net(seed=8))
        module_only.load_checkpoint(place, tag="mine", load_optimizer_states=False, load_lr_scheduler_states=False, load_module_only=True)
        assert stage == 3 or module_only(*batch(50, 0)).item() == found[-1]  # at stage 3 DeepSpeed loads `latest`
        module_only.destroy()
    return found


def overflow():
    """A step of fp16 that overflows is skipped, and so is its schedule's."""
    schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 8}}
    engine = made(2, scheduler=schedule, fp16={"enabled": True, "initial_scale_power": 16, "hysteresis": 1})
    assert engine.optimizer.cur_scale == 65536
    x, y = batch(0, dist.get_rank())
    engine.backward(engine(x.half(), y) * 1e6)
    engine.step()
    assert (engine.global_steps, engine.skipped_steps, engine.optimizer.overflow) == (1, 1, True)
    assert not engine.was_step_applied() and engine.lr_scheduler.last_batch_iteration == -1
    assert engine.optimizer.cur_scale == 32768
    return [engine.optimizer.cur_scale]


def optimizers():
    """The program's own: groups whose rates it changes, a callable, one that no kernel computes; schedules of PyTorch."""

    def groups(model):
        small = [p for p in model.parameters() if p.dim() == 1]
        large = [p for p in model.parameters() if p.dim() > 1]
        return torch.optim.AdamW([{"params": large, "weight_decay": 0.3}, {"params": small, "lr": 2e-2, "weight_decay": 0.0}], lr=1e-2)

    makers = {
        "groups": groups,
        "callable": lambda model: lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        "other": lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-2),
    }
    found = []
    for stage in (1, 3):
        for name, make in makers.items():
            model = Net()
            engine, optimizer, _, schedule = deepspeed.initialize(
                model=model,
                model_parameters=list(model.parameters()),
                optimizer=make(model),
                lr_scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
                config=configuration(stage, zero_allow_untested_optimizer=True),
            )
            assert schedule is engine.lr_scheduler and engine.optimizer_name() in ("AdamW", "SGD", "RMSprop")
            found += train(engine, 2)
            for group in optimizer.param_groups:
                group["lr"] *= 2
            if name == "groups":
                optimizer.param_groups[0]["weight_decay"] = 0.0
            found += train(engine, 2, 2)
            engine.destroy()
    return found


def own_optimizers():
    """DeepSpeed's classes."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam

    found = []
    for make in (FusedAdam, DeepSpeedCPUAdam):
        model = Net()
        optimizer = make(model.parameters(), lr=1e-2, weight_decay=0.1)
        engine = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration(2))[0]
        found.append(train(engine, 2))
        engine.destroy()
    assert found[0] == found[1]
    return found[0]


def made_for_stage_3():
    """zero.Init: all have rank 0's values, and what a rank writes within GatheredParameters lasts."""
    deepspeed.init_distributed()
    config = configuration(3, optimizer=ADAMW, zero_optimization={"stage": 3, "stage3_param_persistence_threshold": 0})
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = Net(seed=dist.get_rank())
    weight, bias = model.head.weight, model.head.bias
    assert weight.ds_numel == 128 and tuple(weight.ds_shape) == (8, 16) and isinstance(weight.ds_id, int)
    available = type(weight.ds_status).AVAILABLE
    assert weight.ds_status != available and not any(p.numel() for p in model.parameters()) and weight.ds_tensor.numel() == 64
    with deepspeed.zero.GatheredParameters([weight, bias], modifier_rank=1):
        assert weight.ds_status == available and weight.shape == (8, 16)
        if dist.get_rank() == 1:
            with torch.no_grad():
                bias.fill_(0.5)
    with deepspeed.zero.GatheredParameters(bias):
        assert bias.tolist() == [0.5] * 8
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    found = train(engine, 2)
    assert engine.module.blocks[0].up.weight.ds_status != available
    with deepspeed.zero.GatheredParameters(engine.module.parameters()):
        found.append(sum(p.double().sum().item() for p in engine.module.parameters()))
        assert all(p.shape == p.ds_shape for p in engine.module.parameters())
    return found


class Sets(Net):
    """Constructors that write to what other constructors have made, by each way to it."""

    def __init__(self, seed):
        super().__init__(seed=seed)
        self.attention = nn.MultiheadAttention(16, 2)  # its constructor clears a bias of a module in it
        self.blocks[0].up.weight.data.mul_(2)
        nn.init.xavier_uniform_(self.blocks[1].up.weight)
        with torch.no_grad():
            self.blocks[0].down.weight.copy_(self.blocks[1].down.weight)
            for p in self.parameters():
                p.add_(torch.rand(1))

    def forward(self, x, y):
        return super().forward(x + self.attention(x, x, x)[0], y)


class Chosen(Net):
    """Which blocks it uses depends on its data. The head is registered first, and called last."""

    def __init__(self, seed):
        super().__init__(seed=seed)
        self.blocks = self._modules.pop("blocks")

    def forward(self, x, y):
        for block in self.blocks:
            x = block(x) if x.sum().item() < 1e9 else x
        return nn.functional.cross_entropy(self.head(x), y)


def same_as_without_init():
    """Only here: the bits of rank 0's model, and the order of units."""
    for kind in (Sets, Chosen):
        with deepspeed.zero.Init():
            model = kind(dist.get_rank())
        rank_0 = kind(0)
        with deepspeed.zero.GatheredParameters(model.parameters()):
            assert all(map(torch.equal, model.parameters(), rank_0.parameters()))
        rows = train(made(3, model.to("cpu")), 2)
        assert rows == train(made(3, rank_0), 2), rows
    return []


def raises(part, function):
    try:
        function()
    except Exception as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"nothing has raised: {part}")


def values(model):
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return [p.detach().clone() for p in model.parameters()]


class Pair(nn.Module):
    def __init__(self, after=lambda pair: None, dtype=None):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6, dtype=dtype), nn.Linear(4, 6)
        after(self)


def changed_type():
    """Only here: values of a wider type are kept, as those of rank 0 alone."""
    with deepspeed.zero.Init():
        model = Pair(dtype=torch.bfloat16)
    model.float()
    p, value = model.a.weight, 1 / 3
    with deepspeed.zero.GatheredParameters([p], modifier_rank=0):
        p.data = torch.full((6, 4), value if dist.get_rank() == 0 else 9.0)
    with deepspeed.zero.GatheredParameters([p]):
        assert p.dtype == torch.float32 and (p == value).all(), p
    with deepspeed.zero.GatheredParameters(list(model.parameters())):  # an inner change lasts
        with deepspeed.zero.GatheredParameters([p], modifier_rank=1), torch.no_grad():
            p.fill_(dist.get_rank() + 6)
    assert not p.numel() and (values(model)[0] == 7).all()

    chosen = [model.a.weight, None, model.b.weight]  # transformers gives a set, whose order differs, and heads without a bias
    with deepspeed.zero.GatheredParameters(chosen[:: 1 - 2 * dist.get_rank()], modifier_rank=0), torch.no_grad():
        model.a.weight.fill_(1), model.b.weight.fill_(2)
    assert (values(model)[0] == 1).all() and (values(model)[2] == 2).all()
    plain = nn.Parameter(torch.full((2,), float(dist.get_rank())))  # of no model of stage 3: each rank's own
    with deepspeed.zero.GatheredParameters([plain], modifier_rank=0):
        pass
    assert (plain == dist.get_rank()).all()

    def differs():
        with deepspeed.zero.GatheredParameters([p], modifier_rank=0):
            p.data = p.data.double() if dist.get_rank() == 0 else p.data

    raises("the ranks differ", differs)
    numbers = nn.Parameter(torch.full((4,), dist.get_rank()), requires_grad=False)  # is not cut
    with deepspeed.zero.Init():
        model.register_parameter("numbers", numbers)
    with deepspeed.zero.GatheredParameters([numbers], modifier_rank=0):
        numbers.data.fill_(5 + dist.get_rank())
    assert (numbers == 5).all()
    return []


def aliases():
    """Only here: what shares the memory of a parameter is not lost, or refused, as without Init."""

    def tie(pair):
        pair.b.weight.data = pair.a.weight.data

    def wrap(pair):
        pair.b.weight = nn.Parameter(pair.a.weight)

    def ties(after):
        with deepspeed.zero.Init():
            model = Pair(after)
        made(3, model).zero.commit()

    raises("share memory", lambda: ties(tie))
    raises("share memory", lambda: ties(wrap))

    def writes(pair):
        more = nn.ModuleList(nn.Linear(2, 2) for _ in range(20))
        kept = [pair.a.weight.data, *(m.weight.data for m in more)]
        for i, w in enumerate(kept):
            w.fill_(i + 1)
        pair.more = more

    with deepspeed.zero.Init():
        model = Pair(writes)
    a, _, _, _, *more = values(model)
    assert (a == 1).all() and all((w == i + 2).all() for i, w in enumerate(more[::2])) and not model.a.weight.numel()
    with deepspeed.zero.Init():
        model = Pair()
        kept = model.a.weight.data
    kept.fill_(3)  # on each rank: the memory is the parameter's still
    assert (values(model)[0] == 3).all()
    with deepspeed.zero.Init():
        model = Pair()
        weight = model.a.weight
        if dist.get_rank() == 0:  # a look is no collective
            assert weight.shape == (6, 4) and weight.size(0) == 6 == len(weight) and weight.numel() == 24 and weight.dim() == weight.ndim == 2
            assert not weight.is_cuda and weight.dtype == torch.float32
        assert not weight.ds_tensor.numel() == 24 and dist.get_world_size() == 2
    if dist.get_rank() == 0:
        meta = Pair()
    else:
        with torch.device("meta"):
            meta = Pair()
    before = [p.detach().clone() for p in meta.parameters()]
    deepspeed.zero.Init(module=meta)
    assert dist.get_rank() or all(map(torch.equal, meta.parameters(), before))
    decay = [{"params": [p for p in model.parameters() if p.ndim >= 2]}]
    decay += [{"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    raises("sorted", lambda: deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(decay), config=configuration(3)))
    return []


def copies():
    """Only here: copies have their parts; a file would have one rank's."""
    import copy
    import io

    def stack(seed):
        torch.manual_seed(seed)
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False)

    with deepspeed.zero.Init():
        model = stack(dist.get_rank())
    assert not any(p.numel() for p in model.parameters())
    again = copy.deepcopy(model)
    for found in (model, again):
        assert all(map(torch.equal, values(found), stack(0).parameters()))
    with deepspeed.zero.GatheredParameters([model.layers[0].linear1.weight], modifier_rank=0), torch.no_grad():
        model.layers[0].linear1.weight.zero_()
    assert all(map(torch.equal, values(again), stack(0).parameters()))
    raises("inside of GatheredParameters", lambda: torch.save(model, io.BytesIO()))
    with deepspeed.zero.GatheredParameters(list(again.parameters())):
        torch.save(again, file := io.BytesIO())
    file.seek(0)
    assert all(map(torch.equal, torch.load(file, weights_only=False).parameters(), stack(0).parameters()))
    return []


def misused():
    """Only here: other parameters on another rank, and writes that reach no part, raise exceptions; other places of values are found."""
    rank = dist.get_rank()

    def pair(after=lambda pair: None):
        with deepspeed.zero.Init():
            return Pair(after)

    model = pair()

    def mixed():
        with deepspeed.zero.GatheredParameters([model.b.weight if rank else model.a.weight]):
            pass

    raises("the ranks differ", mixed)
    model = pair()
    if rank:  # transformers initialises again where rank 0 has done so: rank 0's values count
        nn.init.normal_(model.a.weight)
    made(3, model).zero.commit()
    writes = [lambda model: nn.init.zeros_(model.a.weight), lambda model: model.load_state_dict(pair().state_dict())]
    writes += [lambda model: None if rank else nn.init.zeros_(model.a.weight)]
    for write in writes:
        model = pair()
        write(model)
        raises("was written", lambda: values(model))  # noqa: B023
        raises("was written", lambda: made(3, model).zero.commit())  # noqa: B023

    def other_order(model):
        for name in ("c", "d")[:: 1 - 2 * rank]:
            model.add_module(name, nn.Linear(3, 3))

    raises("", lambda: made(3, pair(other_order)).zero.commit())

    def freezes(model):
        model.a.weight.requires_grad = False
        assert not model.a.weight.ds_tensor.numel() == 24

    model = pair(freezes)
    with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):  # views of one tensor
        nn.utils.vector_to_parameters(torch.arange(60.0) * (1 - rank), model.parameters())
    assert torch.equal(torch.cat([value.flatten() for value in values(model)]), torch.arange(60.0))
    for inside in (True, False):
        with deepspeed.zero.Init(enabled=inside):
            model = nn.Sequential(nn.Conv2d(8, 4, 1).to(memory_format=torch.channels_last))
        if not inside:
            deepspeed.zero.Init(module=model)
        with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0), torch.no_grad():
            model[0].weight.fill_(7 + rank)
        assert (values(model)[0] == 7).all()
    return []


def held():
    """Only here: no rank holds the model while it is made, filled by rank 0, and moves to the engine, in bytes of live tensors."""
    from zero._activations import Live

    config = {"zero_optimization": {"stage": 3}}
    with Live([]) as live:
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = Net(width=256)
        size, largest = sum(p.ds_numel for p in model.parameters()), max(p.ds_numel for p in model.parameters())
        made_in, live.peak = live.peak, live.now
        for block in model.modules():
            with deepspeed.zero.GatheredParameters(block.parameters(recurse=False), modifier_rank=0), torch.no_grad():
                for p in block.parameters(recurse=False):
                    p.fill_(0.5 if dist.get_rank() == 0 else 9)
        assert 2 * size <= live.now <= 2 * size + 1024, (live.now, size)  # bytes: half of it
        assert max(made_in, live.peak) <= 2 * size + 8 * largest + 4096, (made_in, live.peak, size, largest)
        engine = made(3, model)
        live.peak = live.now
        engine.zero._commit()
        engine.zero._fill()
        assert live.peak <= 2 * size + 8 * largest + 4096, (live.peak, size, largest)
        engine.zero._attach()
    with deepspeed.zero.GatheredParameters(model.parameters()):
        assert all((p == 0.5).all() for p in model.parameters())
    return []


def whole_values():
    """safe_get_full_…: gradients before the step, weights and moments after it."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad, safe_get_full_optimizer_state

    found = []
    for stage in (1, 2, 3):
        engine = made(stage)
        for step in range(2):
            engine.backward(engine(*batch(step, dist.get_rank())))
            found += [safe_get_full_grad(p).double().sum().item() for p in engine.module.parameters() if p.requires_grad]
            engine.step()
            for key in ("exp_avg", "exp_avg_sq"):
                found += [safe_get_full_optimizer_state(p, key).double().sum().item() for p in engine.module.parameters()]
            found += [safe_get_full_fp32_param(p).double().sum().item() for p in engine.module.parameters()]
        engine.destroy()
    return found


def unsynced():
    """no_sync; another batch size from a step on."""
    engine = made(1, gradient_accumulation_steps=2)
    with engine.no_sync():
        engine.backward(engine(*batch(0, dist.get_rank())))
    engine.step()
    found = train(engine, 1, 1)
    engine.set_train_batch_size(32)
    assert engine.gradient_accumulation_steps() == 4 and engine.global_steps == 1
    engine.micro_steps = 0
    found += train(engine, 4, 2)
    assert engine.global_steps == 2
    return found


def cleared():
    """Gradients that are cleared after each call of step(), not only at a boundary."""
    found = []
    for stage in (2, 3):
        engine = made(stage, gradient_accumulation_steps=2)
        for number in range(4):
            engine.backward(engine(*batch(number, dist.get_rank())))
            engine.step()
            assert engine.was_step_applied() == bool(number % 2)
            engine.zero_grad()
        found.append(float(engine.get_global_grad_norm()))
        assert (engine.global_steps, engine.micro_steps) == (2, 4)
        engine.destroy()
    engine = made(1)
    with engine.no_sync():
        engine.backward(engine(*batch(0, dist.get_rank())))
        try:
            engine.step()
        except AssertionError as error:
            assert "no_sync" in str(error), error
        else:
            raise AssertionError("a step inside of no_sync")
    assert engine.global_steps == 0
    return found


def resumed():
    """With other accumulation steps: a checkpoint has no part of a step."""
    place = shared_directory()
    engine = made(2, gradient_accumulation_steps=3)
    found = train(engine, 3)
    engine.save_checkpoint(place)
    engine.destroy()
    again = made(2, gradient_accumulation_steps=2)
    again.load_checkpoint(place)
    assert (again.global_steps, again.micro_steps) == (1, 0)
    found += [row[:3] for row in train(again, 2, 3)[1:]]
    assert again.global_steps == 2
    return found


def several():
    """Only here: two forwards before a backward, two backwards of one forward, and a loss through another engine's model, whose gradients its
    own turn clears. DeepSpeed does so at stage 0: 1 and 2 lose the first backward, 3 raises. 2 s."""
    found = []
    for zero in ({"stage": 0}, {"stage": 2}, {"stage": 3, "stage3_prefetch_bucket_size": 0}):
        engine, critic = (made(zero["stage"], zero_optimization=zero) for _ in range(2))
        rows = [batch(number, dist.get_rank()) for number in range(2)]
        engine.backward(engine(*rows[0]) + engine(*rows[1]))
        engine.step()
        found.append(engine.get_global_grad_norm())
        loss, (x, y) = engine(*rows[0]), rows[1]
        engine.backward(loss, retain_graph=True)
        engine.backward(loss / 2)
        engine.step()
        found.append(engine.get_global_grad_norm())
        engine.backward(critic(x * engine(x, y), y))
        engine.step()
        critic.zero_grad()
        found += [engine.get_global_grad_norm(), train(critic, 1)[0][2]]
    return found


def closed():
    """Only here: on each rank state dictionaries have what is whole; a copy, and a model that is given back, are plain."""
    import copy

    keys = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1, "torch_adam": True}}
    engine = made(3, optimizer=keys)
    found, model = train(engine, 2), engine.module
    names = [name for name, _ in model.named_parameters()]
    assert all(engine.zero.state_dict()[name].numel() for name in names)
    with engine.zero.full_parameters():
        assert all(model.state_dict()[name].numel() for name in names)
    with deepspeed.zero.GatheredParameters(model.parameters()):
        assert all(model.state_dict()[name].numel() for name in names)
        assert copy.deepcopy(model).state_dict().keys() == model.state_dict().keys()
    assert dist.get_rank() == 0 or not model.state_dict()[names[0]].numel()
    assert not hasattr(engine, "train_batch") and not hasattr(engine, "no_such_name")
    engine.zero.close(give_back=True)
    assert all(value.numel() for value in model.state_dict().values())
    return found


def unscaled():
    """Only here: after set_train_batch_size a plain loss.backward() is refused, and no step is done."""
    engine = made(1, gradient_accumulation_steps=2)
    found = train(engine, 2)
    engine.set_train_batch_size(8)
    engine(*batch(2, dist.get_rank())).backward()
    try:
        engine.step()
    except RuntimeError as error:
        assert "engine.scale(loss)" in str(error), error
    else:
        raise AssertionError("a plain backward")
    engine.zero_grad()
    assert engine.global_steps == 1
    return [*found, *train(engine, 1, 2)]


def partly():
    """Only here: a model that evaluates, and then trains its head alone. An mpu without model parallel ranks is Megatron's; others are refused."""
    deepspeed.init_distributed()
    model = Net()
    deepspeed.initialize(model=model, config=configuration(0))[0](*batch(0, 0))
    options = {"model_parameters": model.head.parameters(), "config": configuration(1, optimizer=ADAMW)}
    mpus = [SimpleNamespace(get_model_parallel_world_size=lambda size=size: size) for size in (1, 2)]
    raises("model parallel", lambda: deepspeed.initialize(model=Net(), mpu=mpus[1], **options))
    return train(deepspeed.initialize(model=model, mpu=mpus[0], **options)[0], 2)


def recomputes():
    """deepspeed.checkpointing.checkpoint in the model."""

    class Again(Net):
        def forward(self, x, y):
            x = x.clone().requires_grad_()
            for block in self.blocks:
                x = deepspeed.checkpointing.checkpoint(block, x)
            return nn.functional.cross_entropy(self.head(x), y)

    deepspeed.checkpointing.configure(None, deepspeed_config=configuration(1))
    assert deepspeed.checkpointing.is_configured()
    found = []
    for stage in (1, 3):
        engine = made(stage, Again())
        found.append(train(engine, 2))
        engine.destroy()
    return found


def offloads():
    """Only here, where DeepSpeed needs a GPU: the device is free between two steps."""
    engine = made(3)
    found = train(engine, 1)
    engine.offload_states()
    engine.reload_states()
    other = made(3)
    train(other, 1)
    assert train(engine, 1, 1) == train(other, 1, 1)
    return found


def evaluates():
    """A model without an optimizer, as a reference model is."""
    deepspeed.init_distributed()
    found = []
    for stage in (0, 3):
        engine = deepspeed.initialize(model=Net(), config=configuration(stage))[0]
        engine.eval()
        with torch.no_grad():
            found += [engine(*batch(step, 0)).item() for step in range(2)]
    model = engine.module  # as TRL does with a model that is its own reference
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=configuration(3, optimizer=ADAMW))[0]
    engine.train()
    found += train(engine, 2)
    return found


def lent():
    """Only here, where DeepSpeed needs plain modules: the model of an engine that trains is tested by one without an optimizer, for which
    Lightning takes all hooks off, and is trained by a next engine."""
    engine = made(3)
    train(engine, 1)
    model = engine.module
    with torch.no_grad():
        expected = model(*batch(5, 0)).item()
    for module in model.modules():
        module._forward_hooks, module._forward_pre_hooks, module._state_dict_hooks = (type(module._forward_hooks)() for _ in range(3))
    tested = deepspeed.initialize(model=model, config=configuration(3))[0]
    with torch.no_grad():
        assert tested(*batch(5, 0)).item() == expected
    tested.destroy()
    found = train(engine, 2, 1)  # which goes on
    other = made(3)
    assert found == train(other, 3)[1:]
    again = deepspeed.initialize(model=model, config=configuration(3, optimizer=ADAMW))[0]
    found += train(again, 2)
    engine.destroy()  # of another engine now: nothing happens
    raises("on an engine", lambda: deepspeed.initialize(model=model.blocks, config=configuration(3)))
    assert train(again, 1, 2)
    return found


def destroyed():
    """Only here: destroy() leaves the model to a next engine, in the middle of a step, too; at stage 3 in parts."""
    found = []
    for stage in (1, 3):
        engine = made(stage)
        train(engine, 1)
        model = engine.module
        engine.backward(engine(*batch(7, 0)))
        engine.destroy()
        assert all((stage == 1) == bool(p.numel()) for p in model.parameters())
        again = deepspeed.initialize(model=model, config=configuration(stage, optimizer=ADAMW))[0]
        found += train(again, 2, 1)
        again.destroy()
        again.destroy()
        with deepspeed.zero.GatheredParameters(model.parameters()):
            found.append(model(*batch(3, 0)).item())
    return found


def saved_weights():
    """save_16bit_model; state dictionaries at stage 2."""
    place, found = shared_directory(), []
    for stage in (2, 3):
        engine = made(stage, zero_optimization={"stage": stage, "stage3_gather_16bit_weights_on_model_save": True})
        train(engine, 1)
        assert engine.save_16bit_model(place, f"weights{stage}.bin")
        dist.barrier()
        state = torch.load(os.path.join(place, f"weights{stage}.bin"))
        plain = Net(seed=3)
        plain.load_state_dict(state)
        found.append(plain(*batch(60, 0)).item())
        if stage == 2:
            assert all(torch.equal(state[name], value) for name, value in engine.module.state_dict().items())
        engine.destroy()
    return found


def refused():
    """Only here: what is not there says what to do instead."""
    from deepspeed.moe.layer import MoE
    from deepspeed.pipe import PipelineModule

    from deepspeed.utils.groups import initialize

    for call in (PipelineModule, MoE, initialize, deepspeed.init_inference, deepspeed.utils.safe_set_full_grad):
        try:
            call()
        except Exception as error:
            assert "is not there: " in str(error), error
        else:
            raise AssertionError(call)
    raises("deepspeed.utils.no_such_name", lambda: deepspeed.runtime.utils.no_such_name)
    for name in ("no_such_module", "utils.no_such_module"):
        raises("From DeepSpeed", partial(importlib.import_module, f"deepspeed.{name}"))
    return []


def schedules():
    """Those of deepspeed.runtime.lr_schedules."""
    from deepspeed.runtime.lr_schedules import LRRangeTest, OneCycle, WarmupCosineLR, WarmupDecayLR, WarmupLR

    rows = [
        (LRRangeTest, {"lr_range_test_min_lr": 0.1, "lr_range_test_step_size": 3}),
        (LRRangeTest, {"lr_range_test_min_lr": 0.1, "lr_range_test_step_size": 3, "lr_range_test_staircase": True}),
        (OneCycle, {"cycle_min_lr": 0.1, "cycle_max_lr": 0.4, "cycle_first_step_size": 4}),
        (OneCycle, {"cycle_min_lr": 0.1, "cycle_max_lr": 0.4, "cycle_first_step_size": 4, "cycle_second_step_size": 3,
                    "cycle_first_stair_count": 2, "decay_step_size": 2, "decay_lr_rate": 0.5, "decay_mom_rate": 0.1}),
        (WarmupLR, {"warmup_max_lr": 0.3, "warmup_num_steps": 4}),
        (WarmupLR, {"warmup_min_lr": 0.1, "warmup_num_steps": 4, "warmup_type": "linear"}),
        (WarmupDecayLR, {"total_num_steps": 9, "warmup_max_lr": 0.3, "warmup_num_steps": 4}),
        (WarmupCosineLR, {"total_num_steps": 9, "warmup_num_steps": 4, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.05}),
    ]
    found = []
    for make, options in rows:
        optimizer = torch.optim.Adam([nn.Parameter(torch.ones(1))], lr=0.2)
        schedule = make(optimizer, **options)
        for _ in range(14):
            found.append([optimizer.param_groups[0]["lr"], *optimizer.param_groups[0]["betas"]])
            optimizer.step()
            schedule.step()
            assert schedule.get_last_lr() == [optimizer.param_groups[0]["lr"]]
        state = schedule.state_dict()
        optimizer.param_groups[0]["lr"] = 0.2
        other = make(optimizer, **options)
        other.load_state_dict(state)
        assert other.get_lr() == schedule.get_lr()
    return found


def names():
    """What programs ask the package."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    assert accelerator.device_name() == "cpu" and accelerator.communication_backend_name() and accelerator.is_available()
    deepspeed.init_distributed()
    assert deepspeed.comm.get_world_size() == dist.get_world_size() and deepspeed.comm.is_initialized()
    state = accelerator.get_rng_state()
    draw = torch.rand(3)
    accelerator.set_rng_state(state)
    assert torch.equal(torch.rand(3), draw)
    t = torch.ones(2)
    deepspeed.comm.all_reduce(t)
    deepspeed.comm.barrier()
    assert "WarmupLR" in deepspeed.runtime.lr_schedules.VALID_LR_SCHEDULES
    deepspeed.utils.logging.logger.info("one line")  # as Lightning finds it
    assert deepspeed.utils.logging.logger is deepspeed.utils.logger
    assert deepspeed.comm.get_all_ranks_from_group(deepspeed.comm.get_world_group()) == list(range(dist.get_world_size()))
    deepspeed.comm.configure(enabled=False)
    from deepspeed.utils.tensor_fragment import safe_get_full_grad  # noqa: F401
    from deepspeed.runtime.base_optimizer import DeepSpeedOptimizer
    from deepspeed.runtime.engine import DeepSpeedEngine

    assert isinstance(made(3).optimizer, DeepSpeedOptimizer)
    assert DeepSpeedEngine is deepspeed.DeepSpeedEngine and deepspeed.__version__.startswith("0.19.8")
    return t.tolist()


CASES = [names, schedules, stages, module, configurations, boundaries, loaders, checkpoints, optimizers, made_for_stage_3]
CASES += [whole_values, evaluates, saved_weights, unsynced, cleared, resumed, recomputes]
ALONE = [same_as_without_init, changed_type, aliases, copies, misused, held]
CASES += [overflow, refused, own_optimizers, closed, several, partly, unscaled, offloads, lent, destroyed, *ALONE] if deepspeed.__version__.endswith("zero") else []
