"""Accelerator with a DeepSpeedPlugin: stages × optimizer of the file or the program's × scheduler, with state saved and loaded."""

import os
from functools import partial

import torch
import torch.distributed as dist
from cases import configuration, fresh, shared_directory, tiny_llama
from torch.utils.data import DataLoader


def batches(first, count):
    tokens = [torch.randint(0, 64, (12,), generator=torch.Generator().manual_seed(i)) for i in range(first, first + count)]
    return DataLoader([{"input_ids": t, "labels": t} for t in tokens], batch_size=2)


def train(stage, of_file, schedule):
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.state import PartialState
    from accelerate.utils import DummyOptim, DummyScheduler

    fresh()
    config = configuration(stage, train_micro_batch_size_per_gpu="auto", gradient_accumulation_steps=2, gradient_clipping=0.5)
    config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    if of_file:
        config["optimizer"] = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto", "torch_adam": True}}
        if schedule:
            config["scheduler"] = {
                "type": "WarmupLR",
                "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"},
            }
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    PartialState()
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
    assert accelerator.distributed_type == "DEEPSPEED", accelerator.distributed_type
    model = tiny_llama()
    if of_file:
        optimizer = DummyOptim(model.parameters(), lr=5e-3, weight_decay=0.1)
        scheduler = DummyScheduler(optimizer, warmup_num_steps=2) if schedule else None
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1, (n + 1) / 8)) if schedule else None
    prepared = accelerator.prepare(model, optimizer, batches(0, 32), *([scheduler] if schedule else []))
    model, optimizer, loader = prepared[:3]
    found = []
    place = shared_directory()
    for number, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            if schedule:
                prepared[3].step()
            optimizer.zero_grad()
        found.append([loss.item(), optimizer.param_groups[0]["lr"]])
        if number == 3:
            accelerator.save_state(place)
    accelerator.load_state(place)
    again = []
    for number, batch in enumerate(loader):
        if number >= 4:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            again.append(loss.item())
    assert schedule or again == [row[0] for row in found[4:]], (again, found)
    state = accelerator.get_state_dict(model)
    if dist.get_rank() == 0:
        plain = tiny_llama(3)
        plain.load_state_dict(state)
        with torch.no_grad():
            found.append(plain(**next(iter(batches(500, 2)))).loss.item())
    unwrapped = accelerator.unwrap_model(model)
    assert type(unwrapped).__name__ == "LlamaForCausalLM"
    unwrapped.save_pretrained(os.path.join(place, "model"), is_main_process=accelerator.is_main_process, state_dict=state)
    accelerator.free_memory()
    return found


CASES = []
for stage in (2, 3):
    for of_file in (True, False):
        case = partial(train, stage, of_file, True)
        case.__name__ = f"stage{stage}_{'file' if of_file else 'program'}"
        CASES.append(case)
