"""What a program of DeepSpeed relies on beside its numbers: a function for each behaviour that DeepSpeed's own tests name, which raises where
it does not hold. Those that do not hold here are a table in DEEPSPEED.md, by the function's name. With DeepSpeed 0.19.8 itself, each alone on
two CPU ranks, 78 of 85 hold: CPUs have no fp16 (5 functions), a step with unused parameters is not refused, and load_module_only at stage 3
leaves the weights as they are."""

import argparse
import contextlib
import json
import os
import traceback
from types import SimpleNamespace

import deepspeed
import torch
import torch.distributed as dist
from cases import configuration, shared_directory
from plain import ADAMW, Net, batch, made
from torch import nn
from torch.nn import functional as F

ALL = []
behaviour = ALL.append


def raises(call, *args, kind=Exception, word="", **options):
    try:
        call(*args, **options)
    except kind as error:
        assert word in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def one_step(engine, number=0, backward=None):
    loss = engine(*batch(number, dist.get_rank()))
    (backward or engine.backward)(loss)
    engine.step()
    return engine.get_global_grad_norm()


def weights(engine):
    """Whole, on all ranks."""
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return [p.detach().clone() for p in engine.module.parameters()]


def same(a, b, **tolerance):
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, **tolerance)


# ---- initialize and the configuration ----


@behaviour
def no_model():
    raises(deepspeed.initialize, model=None, config=configuration(0), kind=AssertionError)


@behaviour
def no_configuration():
    raises(deepspeed.initialize, model=Net(), kind=AssertionError)


@behaviour
def two_configurations():
    args = SimpleNamespace(deepspeed_config="a.json")
    raises(deepspeed.initialize, args=args, model=Net(), config=configuration(0), kind=AssertionError)


@behaviour
def no_parameters_given():
    engine = deepspeed.initialize(args=None, model=Net(), config=configuration(1, optimizer=ADAMW), dist_init_required=True)[0]
    one_step(engine)
    assert engine.global_steps == 1


@behaviour
def deepscale_argument():
    path = os.path.join(shared_directory(), f"config{dist.get_rank()}.json")
    with open(path, "w") as file:
        json.dump(configuration(0, optimizer=ADAMW, steps_per_print=1), file)
    deepspeed.initialize(args=SimpleNamespace(deepscale_config=path, local_rank=int(os.environ["LOCAL_RANK"])), model=Net())


@behaviour
def parsed_arguments():
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    assert (args := parser.parse_args([])).deepspeed is False and args.deepspeed_config is None
    assert parser.parse_args(["--deepspeed", "--deepspeed_config", "a"]).deepspeed_config == "a"


@behaviour
def batch_sizes():
    """Any two of the three give the third; three that do not agree are refused."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    none = dict.fromkeys(names)
    for sizes in ((16, 4, 2), (16, 4, None), (16, None, 2), (None, 4, 2)):
        engine = made(0, **none | dict(zip(names, sizes, strict=True)))
        assert [getattr(engine, name)() for name in names] == [16, 4, 2], sizes
    for sizes in ((33, 17, 2), (32, 18, 1), (None, None, 2)):
        raises(made, 0, **none | dict(zip(names, sizes, strict=True)))


@behaviour
def a_key_twice():
    path = os.path.join(shared_directory(), f"twice{dist.get_rank()}.json")
    with open(path, "w") as file:
        file.write('{"train_batch_size": 8, "train_batch_size": 16}')
    raises(deepspeed.initialize, model=Net(), config=path)


@behaviour
def hjson():
    path = os.path.join(shared_directory(), f"loose{dist.get_rank()}.json")
    with open(path, "w") as file:
        file.write('{\n# by hand\ntrain_micro_batch_size_per_gpu: 4,\nzero_optimization: {stage: 2},\noptimizer: {type: "Adam", params: {torch_adam: true}},\n}')
    assert deepspeed.initialize(model=Net(), config=path)[0].zero_optimization_stage() == 2


@behaviour
def bfloat16_key():
    assert made(1, bfloat16={"enabled": True}).bfloat16_enabled()


@behaviour
def fp16_weights_key():
    engine = made(3, zero_optimization={"stage": 3, "stage3_gather_fp16_weights_on_model_save": True})
    assert engine.zero_gather_16bit_weights_on_model_save() and engine.save_16bit_model(shared_directory())


@behaviour
def sum_of_gradients():
    norms = [one_step(made(1, gradient_allreduce_op=op)) for op in ("mean", "sum")]
    assert abs(norms[1] - 2 * norms[0]) < 1e-5, norms


@behaviour
def no_optimizer():
    engine = deepspeed.initialize(model=Net(), config=configuration(0))[0]
    loss = engine(*batch(0, 0))
    raises(engine.backward, loss, kind=AssertionError)
    raises(engine.step, kind=AssertionError)


@behaviour
def client_schedule():
    """As an object, a function of the optimizer, and an object of DeepSpeed's."""
    from deepspeed.runtime.lr_schedules import WarmupLR

    found = []
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = WarmupLR(optimizer, 0.0, 0.1, 4, "linear")
    engine = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=configuration(1))[0]
    assert engine.lr_scheduler is schedule
    for as_object in (True, False):
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        make = lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5)  # noqa: E731
        schedule = make(optimizer) if as_object else make
        engine = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=configuration(1))[0]
        one_step(engine)
        found.append(engine.get_lr())
    assert found == [[0.05], [0.05]], found


@behaviour
def rate_before_training():
    schedule = {"type": "WarmupLR", "params": {"warmup_min_lr": 0.25, "warmup_max_lr": 0.5, "warmup_num_steps": 4}}
    engine = made(1, scheduler=schedule)
    assert engine.get_lr() == [0.25] and engine.lr_scheduler.get_last_lr() == [0.25]


# ---- types ----


@behaviour
def gradient_types():
    for name in ("fp32", "bf16"):
        assert halves(2, bf16={"enabled": True}, data_types={"grad_accum_dtype": name})[0].global_steps == 3


def halves(stage, **keys):
    """Losses of three steps on the same batch."""
    engine = made(stage, **keys)
    x, y = batch(0, dist.get_rank())
    found = []
    for _ in range(3):
        loss = engine(x.to(next(engine.module.parameters()).dtype), y)
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    return engine, found


@behaviour
def bf16_trains():
    for stage in (0, 1, 3):
        _, found = halves(stage, bf16={"enabled": True})
        assert found[2] < found[0], found


@behaviour
def fp16_trains():
    for stage in (0, 1, 3):
        engine, found = halves(stage, fp16={"enabled": True, "initial_scale_power": 8})
        assert found[2] < found[0] and engine.fp16_enabled() and engine.dynamic_loss_scale(), found


@behaviour
def static_loss_scale():
    engine, _ = halves(2, fp16={"enabled": True, "loss_scale": 64})
    assert engine.optimizer.cur_scale == 64 and not engine.dynamic_loss_scale()


@behaviour
def loss_scale_grows():
    engine, _ = halves(2, fp16={"enabled": True, "initial_scale_power": 4, "loss_scale_window": 2})
    assert engine.optimizer.cur_scale == 32, engine.optimizer.cur_scale


@behaviour
def fp16_without_scale():
    engine = made(2, fp16={"enabled": True, "initial_scale_power": 8})
    x, y = batch(0, 0)
    raises(engine(x.half(), y).backward, kind=RuntimeError)


@behaviour
def fp16_with_scale():
    engine = made(2, fp16={"enabled": True, "initial_scale_power": 8})
    x, y = batch(0, dist.get_rank())
    engine.scale(engine(x.half(), y)).backward()
    engine.step()
    assert 0 < engine.get_global_grad_norm() < 10, engine.get_global_grad_norm()


@behaviour
def scale_of_a_vector():
    engine = made(1)
    raises(engine.scale, torch.ones(3), kind=AssertionError)


# ---- backward and step ----


@behaviour
def plain_backward():
    for stage in (1, 2, 3):
        norms = [one_step(made(stage)), one_step(made(stage), backward=lambda loss: loss.backward())]
        assert norms[0] == norms[1], norms


@behaviour
def scaled_backward():
    engine = made(2)
    assert one_step(engine, backward=lambda loss: engine.scale(loss).backward()) == one_step(made(2))


@behaviour
def plain_backward_accumulates():
    a, b = made(2, gradient_accumulation_steps=2), made(2, gradient_accumulation_steps=2)
    for number in range(2):
        one_step(a, number)
        one_step(b, number, backward=lambda loss: loss.backward())
    assert a.get_global_grad_norm() == b.get_global_grad_norm()


class Logits(Net):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@behaviour
def loss_outside_of_the_model():
    for stage in (1, 3):
        engine, (x, y) = made(stage, Logits()), batch(0, dist.get_rank())
        engine.backward(F.cross_entropy(engine(x), y))
        engine.step()
        assert engine.get_global_grad_norm() == one_step(made(stage))


@behaviour
def backward_of_a_vector():
    norms = []
    for whole in (True, False):
        engine = made(3, Logits())
        logits = engine(batch(0, dist.get_rank())[0])
        logits.sum().backward() if whole else logits.backward(torch.ones_like(logits))
        engine.step()
        norms.append(engine.get_global_grad_norm())
    assert norms[0] == norms[1], norms


class Losses(Logits):
    def forward(self, x, y, z):
        logits = super().forward(x)
        return F.cross_entropy(logits, y), F.cross_entropy(logits, z), None


@behaviour
def several_outputs():
    engine, (x, y) = made(2, Losses(), gradient_accumulation_steps=2), batch(0, dist.get_rank())
    one, two, _ = engine(x, y, y.flip(0))
    assert torch.equal(engine.backward(one + two), (one + two) / 2)
    engine.step()


@behaviour
def one_loss_of_two_engines():
    norms = []
    for stage in (1, 3):
        engines = [made(stage), made(stage, Net(seed=1))]
        losses = [engine(*batch(0, dist.get_rank())) for engine in engines]
        (losses[0] + losses[1] / 2).backward()
        for engine in engines:
            engine.step()
        norms.append([engine.get_global_grad_norm() for engine in engines])
        assert norms[-1][0] == one_step(made(stage))


@behaviour
def no_sync_again():
    engine = made(1)
    with engine.no_sync():
        raises(engine.no_sync().__enter__, kind=AssertionError)


@behaviour
def step_without_management():
    """managed_gradient_accumulation: each step() updates, after any number of backwards."""
    for stage in (0, 3):
        engine = made(stage, gradient_accumulation_steps=4, managed_gradient_accumulation=False)
        samples = 0
        for count in (2, 5):
            for number in range(count):
                engine.backward(engine(*batch(number, dist.get_rank())) / count, scale_wrt_gas=False)
            engine.step()
            samples += 8 * count
            assert engine.was_step_applied() and engine.global_samples == samples, (engine.global_samples, samples)
        assert engine.global_steps == 2


@behaviour
def boundary_without_management():
    engine = made(1, gradient_accumulation_steps=4, managed_gradient_accumulation=False)
    raises(engine.set_gradient_accumulation_boundary, True, kind=AssertionError)


@behaviour
def empty_group():
    model = Net()
    optimizer = torch.optim.AdamW([{"params": list(model.parameters())}, {"params": [], "weight_decay": 0.0}], lr=1e-2)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration(2))[0]
    assert one_step(engine) > 0


@behaviour
def frozen_weights():
    for stage in (1, 3):
        model = Net()
        model.blocks[0].requires_grad_(False)
        engine = made(stage, model)
        before = weights(engine)
        one_step(engine)
        still = [torch.equal(a, b) for a, b in zip(before, weights(engine), strict=True)]
        assert still == [not p.requires_grad for p in engine.module.parameters()], still


@behaviour
def unused_parameters_refused():
    model = Net()
    model.unused = nn.Linear(16, 16)
    engine = made(2, model, zero_optimization={"stage": 2, "ignore_unused_parameters": False})
    raises(one_step, engine, kind=AssertionError, word="ignore_unused_parameters")


@behaviour
def unused_parameters():
    for stage in (1, 2, 3):
        model = Net()
        model.unused = nn.Linear(16, 16)
        assert one_step(made(stage, model)) > 0


@behaviour
def clipping():
    norms = [one_step(made(2, gradient_clipping=clip)) for clip in (0.0, 0.1)]
    assert norms[0] == norms[1]


@behaviour
def modes():
    engine = made(3)
    for training in (True, False, True):
        engine.train(training)
        loss = engine(*batch(0, dist.get_rank()))
        if training:
            engine.backward(loss)
            engine.step()
    assert engine.global_steps == 2


# ---- models ----


class Repeats(Logits):
    def forward(self, x, y):
        for block in (*self.blocks, *self.blocks):
            x = block(x)
        return F.cross_entropy(self.head(x), y)


class Maps(Logits):
    def forward(self, rows):
        return {"loss": F.cross_entropy(super().forward(rows["x"]), rows["y"]), "none": None}


class Bias(nn.Linear):
    def forward(self, x):
        return super().forward(x), self.bias


class ReturnsBias(Net):
    def __init__(self):
        super().__init__()
        self.middle = Bias(16, 16)

    def forward(self, x, y):
        x, bias = self.middle(x)
        return super().forward(x + bias, y)


class ReadsWeight(Net):
    def forward(self, x, y):
        return super().forward(F.linear(self.blocks[0].up(x), self.blocks[0].down.weight), y)


@behaviour
def repeated_forward():
    assert one_step(made(3, Repeats())) > 0


@behaviour
def mapping():
    engine, (x, y) = made(3, Maps()), batch(0, dist.get_rank())
    engine.backward(engine({"x": x, "y": y})["loss"])
    engine.step()
    assert engine.get_global_grad_norm() == one_step(made(3))


@behaviour
def parameter_as_output():
    norms = [one_step(made(stage, ReturnsBias())) for stage in (1, 3)]
    assert abs(norms[0] - norms[1]) < 1e-6, norms


@behaviour
def parameter_of_another_module():
    norms = [one_step(made(stage, ReadsWeight())) for stage in (1, 3)]
    assert abs(norms[0] - norms[1]) < 1e-6, norms


@behaviour
def no_output():
    class Nothing(Net):
        def forward(self, x, y):
            super().forward(x, y)

    assert made(3, Nothing())(*batch(0, 0)) is None


@behaviour
def attributes_of_the_model():
    class Named(Net):
        def answer(self):
            return 42

    engine = made(3, Named())
    assert engine.answer() == 42 and isinstance(engine.blocks, nn.ModuleList)
    raises(lambda: engine.no_such_name, kind=AttributeError)


# ---- zero.Init and GatheredParameters ----


@behaviour
def init_marks():
    with deepspeed.zero.Init():
        inside = nn.Linear(6, 3)
    outside = nn.Linear(6, 3)
    assert inside.weight.ds_status != type(inside.weight.ds_status).AVAILABLE and not hasattr(outside.weight, "ds_status")
    with deepspeed.zero.GatheredParameters(inside.weight):
        assert inside.weight.ds_status == type(inside.weight.ds_status).AVAILABLE and inside.weight.numel() == 18


@behaviour
def init_nested():
    with deepspeed.zero.Init(), deepspeed.zero.Init():
        inside = nn.Linear(6, 3)
    assert hasattr(inside.weight, "ds_id") and not hasattr(nn.Linear(6, 3).weight, "ds_id")


@behaviour
def init_of_new_classes():
    with deepspeed.zero.Init():

        class Late(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(4, 4)
                self.own = nn.Parameter(torch.zeros(4))

        model = Late()
    assert hasattr(model.own, "ds_id") and hasattr(model.inner.weight, "ds_id")


@behaviour
def init_elsewhere():
    """Nothing happens where it is off."""
    with deepspeed.zero.Init(enabled=False):
        assert not hasattr(nn.Linear(2, 2).weight, "ds_id")


@behaviour
def init_in_half():
    with deepspeed.zero.Init():
        assert nn.Linear(10, 10).weight.ds_tensor.numel()


@behaviour
def init_after_an_exception():
    with contextlib.suppress(ValueError), deepspeed.zero.Init():
        raise ValueError
    assert not hasattr(nn.Linear(2, 2).weight, "ds_id")


@behaviour
def gathered_is_freed():
    engine = made(3)
    one_step(engine)
    with deepspeed.zero.GatheredParameters(engine.head.weight):
        assert engine.head.weight.numel() == 128
    assert engine.head.weight.numel() == 0


@behaviour
def gathered_change_lasts():
    engine = made(3)
    one_step(engine)
    with deepspeed.zero.GatheredParameters(engine.head.weight, modifier_rank=1), torch.no_grad():
        if dist.get_rank() == 1:
            engine.head.weight.zero_()
    with deepspeed.zero.GatheredParameters(engine.head.weight):
        assert not engine.head.weight.any()


@behaviour
def gathered_change_refused():
    engine = made(3, zero_optimization={"stage": 3, "enable_sanity_checks": True})
    one_step(engine)

    def write():
        with deepspeed.zero.GatheredParameters(engine.head.weight), torch.no_grad():
            engine.head.weight.add_(0.0)

    raises(write, kind=RuntimeError, word="in-place modification")


@behaviour
def gathered_off():
    engine = made(3)
    with deepspeed.zero.GatheredParameters(engine.head.weight, enabled=False):
        pass


@behaviour
def generation_unwrapped():
    from deepspeed.runtime.zero import unwrap_model_for_generation

    engine = made(3)
    with unwrap_model_for_generation(engine) as model:
        assert model.head.weight.numel()


# ---- leaf modules ----


class Experts(nn.ModuleList):
    pass


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = Experts([nn.Linear(2, 2)])


@behaviour
def leaf_by_class():
    from deepspeed.utils import get_z3_leaf_modules, set_z3_leaf_modules, unset_z3_leaf_modules, z3_leaf_module

    model = Holder()
    assert set_z3_leaf_modules(model, [nn.ModuleList]) == [model.experts] == get_z3_leaf_modules(model)
    assert z3_leaf_module(model.experts) and not z3_leaf_module(model)
    assert unset_z3_leaf_modules(model, [nn.ModuleList]) == [model.experts] and not get_z3_leaf_modules(model)


@behaviour
def leaf_by_name_of_class():
    from deepspeed.utils import set_z3_leaf_modules

    for name in ("Experts", f"{Experts.__module__}.{Experts.__qualname__}"):
        model = Holder()
        assert set_z3_leaf_modules(model, [name]) == [model.experts], name


@behaviour
def leaf_missing():
    from deepspeed.utils import set_z3_leaf_modules

    raises(set_z3_leaf_modules, Holder(), [nn.Conv2d], kind=ValueError)
    assert set_z3_leaf_modules(Holder(), ["NoSuchClass"], raise_if_not_found=False) == []


@behaviour
def leaf_by_name_of_module():
    from deepspeed.utils import set_z3_leaf_modules_by_name

    model = Holder()
    assert set_z3_leaf_modules_by_name(model, ["experts"]) == ([model.experts], [])


# ---- values by name ----


def of_one_rank(call, stage=2):
    engine = made(stage)
    engine.backward(engine(*batch(0, dist.get_rank())))
    engine.step()
    return call(engine.head.weight)


@behaviour
def whole_weight_in_half():
    from deepspeed.utils import safe_get_full_fp32_param

    engine, _ = halves(3, bf16={"enabled": True})
    value = safe_get_full_fp32_param(engine.head.weight)
    assert value.dtype == torch.float32 and tuple(value.shape) == (8, 16)


@behaviour
def local_values():
    from deepspeed.utils import safe_get_local_fp32_param

    assert of_one_rank(safe_get_local_fp32_param, 3).numel()


@behaviour
def values_set():
    from deepspeed.utils import safe_get_full_fp32_param, safe_set_full_fp32_param

    def change(p):
        safe_set_full_fp32_param(p, torch.ones(8, 16))
        return safe_get_full_fp32_param(p)

    assert (of_one_rank(change) == 1).all()


# ---- checkpoints ----


@behaviour
def no_checkpoint():
    assert made(2).load_checkpoint(shared_directory()) == (None, None)


@behaviour
def no_directory():
    for place in (None, ""):
        raises(made(1).save_checkpoint, save_dir=place)


@behaviour
def tags_differ():
    raises(made(1, checkpoint={"tag_validation": "FAIL"}).save_checkpoint, shared_directory(), tag=f"tag{dist.get_rank()}", kind=AssertionError)


@behaviour
def unknown_tag_validation():
    raises(made, 1, checkpoint={"tag_validation": "foo"})


@behaviour
def optimizer_left_out():
    place, engine = shared_directory(), made(2)
    one_step(engine)
    engine.save_checkpoint(place)
    other = made(2, Net(seed=5))
    other.load_checkpoint(place, load_optimizer_states=False)
    same(weights(other), weights(engine))


@behaviour
def schedule_left_out():
    schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1, "warmup_num_steps": 8}}
    place, engine = shared_directory(), made(1, scheduler=schedule)
    for number in range(3):
        one_step(engine, number)
    engine.save_checkpoint(place)
    for loads in (True, False):
        other = made(1, scheduler=schedule)
        other.load_checkpoint(place, load_lr_scheduler_states=loads)
        assert other.lr_scheduler.last_batch_iteration == (engine.lr_scheduler.last_batch_iteration if loads else -1)


@behaviour
def module_alone():
    place, engine = shared_directory(), made(3)
    one_step(engine)
    engine.save_checkpoint(place, "mine")
    other = made(3, Net(seed=5))
    other.load_checkpoint(place, "mine", load_module_only=True)
    same(weights(other), weights(engine))
    assert other.global_steps == 0


@behaviour
def client_optimizer_kept():
    place = shared_directory()
    for name, make in (("adam", torch.optim.Adam), ("other", torch.optim.RMSprop)):
        made_by = lambda seed: (m := Net(seed=seed), deepspeed.initialize(  # noqa: E731
            model=m, optimizer=make(m.parameters(), lr=1e-2), config=configuration(1, zero_allow_untested_optimizer=True))[0])[1]
        engine, other = made_by(0), made_by(5)
        one_step(engine)
        engine.save_checkpoint(place, name)
        other.load_checkpoint(place, name)
        assert one_step(engine, 1) == one_step(other, 1)
        same(weights(engine), weights(other))


class Tied(Net):
    def __init__(self, seed=0):
        super().__init__(seed=seed)
        self.blocks[1].up.weight = self.blocks[0].up.weight


@behaviour
def tied_weights():
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    place, engine = shared_directory(), made(2, Tied())
    one_step(engine)
    engine.save_checkpoint(place)
    state = get_fp32_state_dict_from_zero_checkpoint(place)
    assert torch.equal(state["blocks.0.up.weight"], state["blocks.1.up.weight"])
    Tied(seed=3).load_state_dict(state, strict=True)


@behaviour
def saved_within_a_step():
    place, engine = shared_directory(), made(1, gradient_accumulation_steps=2)
    for number in range(3):
        one_step(engine, number)
    engine.save_checkpoint(place)
    other = made(1, Net(seed=5), gradient_accumulation_steps=2)
    other.load_checkpoint(place)
    same(weights(other), weights(engine))


@behaviour
def frozen_left_out():
    model = Net()
    model.head.requires_grad_(False)
    engine = made(2, model)
    kept = engine.module_state_dict(exclude_frozen_parameters=True)
    assert set(Net().state_dict()) - set(kept) == {"head.weight", "head.bias"}


@behaviour
def weights_by_name():
    engine = made(1)
    engine.load_module_state_dict({"module": Net(seed=4).state_dict()})
    same(weights(engine), list(Net(seed=4).parameters()))


# ---- the rest ----


@behaviour
def inference_all_reduce():
    deepspeed.comm.inference_all_reduce(torch.ones(3))


@behaviour
def distributed_twice():
    for required in (True, False, None):
        deepspeed.init_distributed(dist_init_required=required)
    t = torch.full((3,), float(dist.get_rank()))
    deepspeed.comm.all_reduce(t)
    assert t.tolist() == [1.0] * 3 and deepspeed.comm.get_rank() == dist.get_rank()


@behaviour
def on_device():
    with deepspeed.OnDevice(dtype=torch.half, device="meta"):
        module = nn.Linear(4, 4)
    assert module.weight.is_meta and module.weight.dtype == torch.half and nn.Linear(2, 2).weight.dtype == torch.float32


@behaviour
def last_batch():
    rows = [(torch.zeros(16), torch.tensor(0))] * 10
    for drop, count in ((True, 1), (False, 2)):
        loader = made(1, dataloader_drop_last=drop).deepspeed_io(rows)
        assert len(loader) == len(list(loader)) == count, (drop, len(loader))


@behaviour
def recomputation_of_any_arguments():
    def run(x, flag, none=None, *, factor=1.0):
        assert flag == "text" and none is None
        return x.sin() * factor, flag, None

    x = torch.ones(3, requires_grad=True)
    y, flag, none = deepspeed.checkpointing.checkpoint(run, x, "text", None, factor=2.0)
    y.sum().backward()
    assert flag == "text" and none is None and torch.allclose(x.grad, 2 * torch.ones(3).cos())


@behaviour
def recomputation_with_frozen_weights():
    class Frozen(Logits):
        def forward(self, x, y):
            for block in self.blocks:
                x = deepspeed.checkpointing.checkpoint(block, x.requires_grad_() if x.is_leaf else x)
            return F.cross_entropy(self.head(x), y)

    norms = []
    for stage in (1, 3):
        model = Frozen()
        model.blocks[1].requires_grad_(False)
        norms.append(one_step(made(stage, model)))
    assert abs(norms[0] - norms[1]) < 1e-6, norms


def rates(make, options, lr=0.2):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=lr, momentum=0.9)
    return optimizer, make(optimizer, **options)


@behaviour
def schedule_sizes_refused():
    from deepspeed.runtime import lr_schedules as s

    for make, options in (
        (s.LRRangeTest, {"lr_range_test_step_size": 0}),
        (s.OneCycle, {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2, "cycle_first_step_size": 0}),
        (s.WarmupLR, {"warmup_num_steps": -5}),
        (s.WarmupDecayLR, {"total_num_steps": 9, "warmup_num_steps": None}),
    ):
        raises(rates, make, options, kind=ValueError)


@behaviour
def schedule_of_unknown_warmup():
    from deepspeed.runtime.lr_schedules import WarmupLR

    found = []
    for kind in ("log", "no such type"):
        _, schedule = rates(WarmupLR, {"warmup_max_lr": 0.3, "warmup_num_steps": 4, "warmup_type": kind})
        schedule.step(), schedule.step()
        found.append(schedule.get_lr())
    assert found[0] == found[1]


@behaviour
def schedule_by_group():
    from deepspeed.runtime.lr_schedules import OneCycle

    raises(rates, OneCycle, {"cycle_min_lr": [0.1, 0.2, 0.3], "cycle_max_lr": [0.2, 0.3, 0.4]}, kind=ValueError)
    optimizer, _ = rates(OneCycle, {"cycle_min_lr": [0.1], "cycle_max_lr": [0.2]})
    assert optimizer.param_groups[0]["lr"] == 0.1


@behaviour
def schedule_of_a_tensor():
    from deepspeed.runtime.lr_schedules import WarmupLR

    optimizer, schedule = rates(WarmupLR, {"warmup_max_lr": 0.3, "warmup_num_steps": 4}, torch.tensor(0.2))
    schedule.step()
    assert torch.is_tensor(optimizer.param_groups[0]["lr"])
    for lr in (0.2, torch.tensor(0.2)):  # the highest rate is the group's own
        optimizer, schedule = rates(WarmupLR, {"warmup_num_steps": 4}, lr)
        schedule.step(4)
        assert abs(float(optimizer.param_groups[0]["lr"]) - 0.2) < 1e-6


def behaviours():
    """The names, and why they do not hold."""
    deepspeed.init_distributed()
    found = {}
    for function in ALL:
        try:
            function()
            found[function.__name__] = ""
        except Exception as error:
            found[function.__name__] = f"{type(error).__name__}: {error}" or "?"
            if dist.get_rank() == 0 and "BEHAVIOURS" in os.environ:
                traceback.print_exc()
    return found


CASES = [behaviours]
