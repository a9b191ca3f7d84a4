"""Transformers' Trainer(deepspeed=…), and without it under DistributedDataParallel, as stage 0: stages × optimizer of the file or the program's × scheduler, save, resume, best model, predict."""

import gc
import os
from functools import partial

import torch
import torch.distributed as dist
from cases import configuration, fresh, shared_directory, tiny_llama


def data(first, count):
    return [{"input_ids": torch.randint(0, 64, (12,), generator=torch.Generator().manual_seed(i))} for i in range(first, first + count)]


def batch(rows):
    tokens = torch.stack([row["input_ids"] for row in rows])
    return {"input_ids": tokens, "labels": tokens}


def plain_optimizer(trainer, of_file, schedule_of_file):
    """What the file says, made by hand: its optimizer decays all parameters."""
    from transformers import get_linear_schedule_with_warmup
    from zero.deepspeed.schedules import WarmupDecayLR

    options = {"lr": 5e-3, "weight_decay": 0.1}
    optimizer = torch.optim.AdamW(trainer.model.parameters(), **options) if of_file else trainer.create_optimizer()
    if schedule_of_file:
        return optimizer, WarmupDecayLR(optimizer, 4, 0.0, 5e-3, 2)
    return optimizer, get_linear_schedule_with_warmup(optimizer, 2, 4)


def train(stage, optimizer, scheduler, resume=False, **options):
    from transformers import Trainer, TrainingArguments

    fresh()
    config = configuration(stage, train_micro_batch_size_per_gpu="auto", gradient_accumulation_steps="auto", gradient_clipping="auto")
    config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    del config["steps_per_print"]
    if optimizer:
        config["optimizer"] = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto", "torch_adam": True}}
    if scheduler:
        config["scheduler"] = {
            "type": "WarmupDecayLR",
            "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"},
        }
    place = shared_directory()
    make = lambda: TrainingArguments(  # noqa: E731
        place,
        deepspeed=config if stage else None,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=4,
        learning_rate=5e-3,
        warmup_steps=2,
        weight_decay=0.1,
        max_grad_norm=0.5,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        load_best_model_at_end=True,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
        save_total_limit=None,
        **options,
    )


    def trainer_of(seed):
        args, model, own = make(), tiny_llama(seed), {}
        datasets = {"train_dataset": data(0, 64), "eval_dataset": data(1000, 8), "data_collator": batch}
        if not stage and (optimizer or scheduler):
            own["optimizers"] = plain_optimizer(Trainer(model, args, **datasets), optimizer, scheduler)
        return Trainer(model, args, **datasets, **own)

    trainer = trainer_of(0)
    trainer.train()
    found = [[row.get(key) for key in ("loss", "grad_norm", "learning_rate", "eval_loss")] for row in trainer.state.log_history[:-1]]
    found.append(trainer.evaluate()["eval_loss"])  # of the best model
    found.append(float(trainer.predict(data(2000, 4)).predictions.astype("float64").mean()))
    trainer.save_model(os.path.join(place, "last"))
    dist.barrier()
    from transformers import AutoModelForCausalLM
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    if resume:
        del trainer
        gc.collect()
        fresh()
        again = trainer_of(5)
        again.train(resume_from_checkpoint=os.path.join(place, "checkpoint-2"))
        found.append([[row.get(key) for key in ("loss", "grad_norm", "learning_rate")] for row in again.state.log_history[-4:-1]])
    unset_hf_deepspeed_config()
    saved = AutoModelForCausalLM.from_pretrained(os.path.join(place, "last"))
    with torch.no_grad():
        found.append(saved(**batch(data(3000, 4))).loss.item())
    return found


CASES = []
for stage in (0, 2, 3):
    for optimizer in (True, False):
        for scheduler in (True, False):
            case = partial(train, stage, optimizer, scheduler, resume=optimizer == scheduler)
            case.__name__ = f"stage{stage}_{'file' if optimizer else 'program'}_{'file' if scheduler else 'program'}"
            CASES.append(case)
