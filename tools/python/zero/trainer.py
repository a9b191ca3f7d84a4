"""Hugging Face's Trainer on the engine:

from zero.trainer import Trainer  # in place of transformers.Trainer
Trainer(model, args, train_dataset=data, zero_config="ds_config.json").train()
"""

import json
import os
import warnings
from typing import Any

import transformers

import zero
from zero._abi import config_json
from zero.deepspeed import schedules
from zero.deepspeed.heads import commit_head

# A word in the name of an optimizer, and the TrainingArguments that it takes beside lr and weight_decay.
_TAKES = {"adam": ("betas", "eps"), "lamb": ("betas", "eps"), "lion": ("betas",)}


def _merged(given: Any, ours: Any, differ: list[str], path: str = "") -> Any:
    """`given`, with `ours` where it says "auto" or nothing. `differ`: where it says something else."""
    if isinstance(given, dict) and isinstance(ours, dict):
        return {**given, **{key: _merged(given.get(key), value, differ, f"{path}.{key}"[not path :]) for key, value in ours.items()}}
    if given is None or given == "auto":
        return ours
    if given != ours:
        differ.append(f"{path} {given} (not {ours})")
    return given


def _optimizer(kind: str, args: Any) -> dict[str, Any]:
    """The arguments' values that an optimizer of this type has."""
    adam = {"betas": [args.adam_beta1, args.adam_beta2], "eps": args.adam_epsilon}
    takes = [key for word, keys in _TAKES.items() if word in kind.lower() for key in keys]
    params = {"lr": args.learning_rate, "weight_decay": args.weight_decay, **{key: adam[key] for key in takes}}
    return {"type": kind, "params": params}


class Sharded:
    """What makes a Trainer's subclass one of the engine: class Mine(Sharded, SFTTrainer).

    What `zero_config` leaves out or leaves "auto" comes from the TrainingArguments, and so do the optimizer without `optimizer` there, and
    the schedule of learning rates without `scheduler`. `zero_options`: those of fully_shard."""

    def __init__(self: Any, *args: Any, zero_config: Any = None, zero_options: Any = None, **kwargs: Any) -> None:
        self._config, self._options = json.loads(config_json(zero_config or {})), zero_options or {}
        super().__init__(*args, **kwargs)
        self.create_optimizer()
        commit_head(self.engine)

    def _configuration(self: Any) -> dict[str, Any]:
        config, args = {key: value for key, value in self._config.items() if key != "scheduler"}, self.args
        if args.fp16_full_eval or args.bf16_full_eval:
            raise ValueError("zero: evaluations have the type of the training; leave out fp16_full_eval and bf16_full_eval")
        ours = {
            "train_batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
            "train_micro_batch_size_per_gpu": args.per_device_train_batch_size,
            "gradient_accumulation_steps": args.gradient_accumulation_steps,
            "gradient_clipping": args.max_grad_norm or 0,
            "bf16": {"enabled": args.bf16},
            "fp16": {"enabled": args.fp16},
        }
        block = config.pop("optimizer", None)
        if block and block != "auto":
            kind = block.get("type", "auto")
            if kind == "auto":
                raise ValueError("zero: `optimizer` of the configuration has no type: give it one, or leave it out, and `optim` counts")
            config["optimizer"], ours["optimizer"] = block, _optimizer(kind, args)
        differ: list[str] = []
        merged: dict[str, Any] = _merged(config, ours, differ)
        if differ:
            warnings.warn(f"zero: the configuration counts where the TrainingArguments differ: {', '.join(differ)}", stacklevel=5)
        return merged

    def create_scheduler(self: Any, num_training_steps: int, optimizer: Any = None) -> Any:
        block, args = self._config.get("scheduler"), self.args
        if not block or self.lr_scheduler is not None:
            return super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]
        ours = {"warmup_min_lr": 0, "warmup_max_lr": args.learning_rate, "total_num_steps": num_training_steps}
        ours["warmup_num_steps"] = max(1, args.get_warmup_steps(num_training_steps))
        params = {key: ours.get(key) if value == "auto" else value for key, value in block.get("params", {}).items()}
        self.lr_scheduler = schedules.from_config(block | {"params": params}, self.optimizer)
        return self.lr_scheduler

    def create_optimizer(self: Any, model: Any = None) -> zero.Optimizer:
        if getattr(self, "engine", None) is None:
            config, options = self._configuration(), {"device": self.args.device} | self._options
            if "optimizer" in config:
                if self.optimizer is not None or getattr(self, "optimizer_cls_and_kwargs", None) is not None:
                    raise ValueError("zero: the Trainer has an optimizer, and zero_config has `optimizer`: leave out one of the two")
                decays = set(self.get_decay_parameter_names(self.model))
                options["no_decay"] = {name for name, _ in self.model.named_parameters()} - decays
            else:
                options["optimizer"] = super().create_optimizer()  # type: ignore[misc]
            self.engine = zero.fully_shard(self.model, config, **options)
            if self.engine.accumulation_steps != self.args.gradient_accumulation_steps:
                raise ValueError("zero: gradient_accumulation_steps is not that of the TrainingArguments")
            self.optimizer = self.engine.optimizer
        else:
            self.engine._passes.restart()  # drops what an interrupted training has left of a step
        return self.optimizer  # type: ignore[no-any-return]

    def create_accelerator_and_postprocess(self: Any) -> None:
        """The Accelerator wraps nothing, and its backward and clipping are the engine's, which steps where it clips."""
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        self.args._n_gpu = min(self.args.n_gpu, 1)
        self.accelerator.prepare_model = lambda model, **_: model
        self.accelerator.backward = lambda loss, **_: self.engine.backward(loss * self.engine.accumulation_steps)
        self.accelerator.clip_grad_norm_ = lambda *_: self.engine.step(last=True).grad_norm

    def _move_model_to_device(self, model: Any, device: Any) -> None:
        """The engine does that."""

    def save_model(self: Any, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """On all ranks, of which some versions of transformers let rank 0 alone come to _save."""
        self._has_saved = False
        super().save_model(output_dir, _internal_call)  # type: ignore[misc]
        if not self._has_saved:
            self._save(output_dir)

    def _save(self: Any, output_dir: str | None = None, state_dict: Any = None) -> None:
        self._has_saved = True
        place = output_dir or self.args.output_dir
        with self.engine.adapters() as adapters:
            if self.args.should_save:
                super()._save(place, state_dict=adapters or {})  # type: ignore[misc]  # all but a model's weights
        if adapters is None:
            self.engine.save_pretrained(place)

    def _save_optimizer_and_scheduler(self: Any, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
        self.engine.save(os.path.join(output_dir, "zero"))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """The engine's checkpoint has the weights too."""

    def _load_optimizer_and_scheduler(self: Any, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self.engine.load(os.path.join(checkpoint, "zero"))
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]

    def _load_best_model(self: Any) -> None:
        place = os.path.join(self.state.best_model_checkpoint, "zero")
        if os.path.isdir(place):
            self.engine.load(place, weights_only=True)
        else:  # save_only_model
            with self.engine.full_parameters(writeback=True) as model:
                if getattr(model, "peft_config", None):
                    super()._load_best_model()  # type: ignore[misc]
                else:
                    zero.load_pretrained(model, self.state.best_model_checkpoint, strict=True)


class Trainer(Sharded, transformers.Trainer):  # type: ignore[misc]
    """transformers.Trainer, with zero_config and zero_options."""
