"""What is kept and read: FSDP's tests of state_dict, DeepSpeed's of checkpoints and zero.Init, PEFT's of adapters."""

import copy
from importlib.util import find_spec
from typing import Any

import torch
import zero
from torch import nn

from models import KINDS, MLP, loss_of_images, loss_of_lm, loss_of_vectors
from peers.forwards import Language
from peers.scenarios import close, directory, optimizer_of, same_weights, scenario, seeded, sharded, train_both


def trained(engine: zero.Engine, batches: Any, loss: Any = loss_of_vectors) -> list[float]:
    losses = []
    for batch in batches:
        value = loss(engine.model, batch)
        engine.backward(value)
        engine.step()
        losses.append(value.item())
    return losses


@scenario
def weights_to_a_plain_model_and_back() -> None:
    """Also of a model with buffers, tied weights and frozen ones; missing keys are named."""
    for make, loss in ((KINDS["resnet"].make, loss_of_images), (lambda: Language(tied=True), None)):
        engine, plain = sharded(seeded(make)), seeded(make, 1)
        if loss:
            trained(engine, range(2), loss)
        plain.load_state_dict(engine.state_dict())
        same_weights(engine, plain, 0)
        other = sharded(seeded(make, 2), 1)
        assert not other.load_state_dict(plain.state_dict()).missing_keys
        same_weights(other, plain, 0)
        assert other.hash() == engine.hash()
    state = engine.state_dict()
    del state["blocks.0.a.bias"]
    assert engine.load_state_dict(state, strict=False).missing_keys == ["blocks.0.a.bias"]


@scenario
def a_checkpoint_goes_on_at_another_stage() -> None:
    """The next losses are those of a training without interruption; also with statistics of batch norms, averages and notes."""
    for kind in ("SGD", "AdamW"):
        for stage, later in ((3, 0), (0, 3), (2, 1)):
            place = directory()
            engine = sharded(seeded(MLP), stage, kind)
            trained(engine, range(2))
            engine.save(place)
            expected = trained(engine, range(2, 5))
            other = sharded(seeded(MLP, 1), later, kind)
            assert other.resume(place) and other.steps == 2 and other.samples == 8
            close(torch.tensor(trained(other, range(2, 5))), torch.tensor(expected), "losses after the load", 1e-6)

    place = directory()
    engine = sharded(seeded(KINDS["resnet"].make), ema={"decay": 0.9})
    trained(engine, range(2), loss_of_images)
    engine.save(place, notes={"epoch": "7"})
    expected = trained(engine, range(2, 4), loss_of_images)
    other = sharded(seeded(KINDS["resnet"].make, 1), 1, ema={"decay": 0.9})
    other.load(place)
    assert other.note("epoch") == "7"
    close(torch.tensor(trained(other, range(2, 4), loss_of_images)), torch.tensor(expected), "losses after the load", 1e-4)
    for averages in (False, True):
        right = engine.state_dict(averages=averages)
        for name, value in other.state_dict(averages=averages).items():
            close(value, right[name], name, 1e-4)


@scenario
def a_save_between_micro_steps() -> None:
    """The checkpoint has the state after the step before, and the step that has begun goes on."""
    engine, place = sharded(seeded(MLP), gradient_accumulation_steps=2), directory()
    trained(engine, range(3))
    engine.save(place)
    other = sharded(seeded(MLP, 1), 1, gradient_accumulation_steps=2)
    other.load(place)
    assert other.hash() == engine.hash() and other.steps == 1
    trained(engine, [3])
    assert engine.steps == 2 and engine.hash() != other.hash()


@scenario
def weights_changed_by_the_program() -> None:
    """Between steps, by full_parameters(writeback=True): a reset layer, clipped weights."""
    engine, plain = sharded(seeded(MLP)), seeded(MLP)
    optimizer = optimizer_of(plain.parameters())

    def change(model: Any) -> None:
        with torch.no_grad():
            model.head.weight.fill_(0.25)
            for p in model.parameters():
                p.clamp_(-0.05, 0.3)

    for batch in range(3):
        trained(engine, [batch])
        loss_of_vectors(plain, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        with engine.full_parameters(writeback=True) as model:
            change(model)
        change(plain)
    same_weights(engine, plain)


@scenario
def a_model_made_on_the_meta_device() -> None:
    """Its values come from files, or from its modules' own functions."""
    place = directory()
    engine = sharded(seeded(MLP))
    trained(engine, range(1))
    engine.save_pretrained(place)
    with torch.device("meta"):
        models = [MLP(), MLP()]
    other = sharded(zero.load_pretrained(models[0], place), 1)
    for name, value in engine.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    state = sharded(models[1]).state_dict()
    assert 0.02 < float(state["blocks.0.a.weight"].std()) < 0.2
    assert torch.isfinite(torch.tensor(trained(engine, range(1)))).all()


def lora(base: nn.Module, **more: Any) -> Any:
    import peft

    torch.manual_seed(3)
    return peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2, lora_dropout=0.0, **more)).train()


if find_spec("peft") and find_spec("transformers"):

    @scenario
    def adapters_of_peft() -> None:
        """They train as PEFT's, are saved alone, load into another base, and merge into it; one may be off while another is trained."""
        import peft

        make = lambda **more: lora(seeded(KINDS["llama"].make), **more)
        for more in ({"modules_to_save": ["lm_head"]}, {"use_dora": True}):
            engine, plain = train_both(lambda more=more: make(**more), loss_of_lm, stages=(3,), steps=2)
            place = directory()
            engine.save_pretrained(place)
            read = peft.PeftModel.from_pretrained(seeded(KINDS["llama"].make), place)
            close(loss_of_lm(read, 9), loss_of_lm(plain, 9), f"loss of the saved adapter {more}")
            with engine.full_parameters() as whole:
                merged = copy.deepcopy(whole).merge_and_unload()
            close(loss_of_lm(merged, 9), loss_of_lm(plain, 9), f"loss of the merged model {more}")

        def two() -> nn.Module:
            model = lora(seeded(KINDS["llama"].make))
            model.add_adapter("other", peft.LoraConfig(target_modules=["q_proj"], r=2))
            model.set_adapter("other")
            return model

        engine, plain = train_both(two, loss_of_lm, stages=(3,), steps=2)
        for model in (engine.model, plain):
            with model.disable_adapter(), torch.no_grad():
                close(loss_of_lm(model, 5), loss_of_lm(seeded(KINDS["llama"].make), 5), "loss of the base")

    @scenario
    def files_then_adapters() -> None:
        base, place = seeded(KINDS["llama"].make, 7), directory()
        base.save_pretrained(place)
        plain = lora(copy.deepcopy(base))
        for device in ("cpu", "meta"):
            with torch.device(device):
                model = KINDS["llama"].make()
            engine = sharded(lora(zero.load_pretrained(model, place)))
            close(loss_of_lm(engine.model, 0), loss_of_lm(plain, 0), f"loss on {device}")
            trained(engine, range(2), loss_of_lm)
            state = engine.state_dict()
            for name, value in plain.state_dict().items():
                assert "lora_" in name or torch.equal(state[name], value), (name, device)
