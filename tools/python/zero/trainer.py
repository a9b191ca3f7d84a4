"""Hugging Face's Trainer on the engine:

from zero.trainer import Trainer  # in place of transformers.Trainer
Trainer(model, args, train_dataset=data, zero_config="ds_config.json").train()
"""

import json
import os
from typing import Any

import transformers
from transformers.training_args import OptimizerNames

import zero
from zero._abi import config_text

# The beginning of `optim` of the TrainingArguments, after "paged_", and the engine's optimizer.
_OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD", "adagrad": "Adagrad", "lion": "Lion"}
# A word in the name of an optimizer, and the TrainingArguments that it takes beside lr and weight_decay.
_TAKES = {"adam": ("betas", "eps"), "lamb": ("betas", "eps"), "lion": ("betas",)}


def _merged(given: Any, ours: Any) -> Any:
    """`given`, with `ours` where it says "auto" or nothing."""
    if isinstance(given, dict) and isinstance(ours, dict):
        return {**given, **{key: _merged(given.get(key), value) for key, value in ours.items()}}
    return ours if given is None or given == "auto" else given


def _optimizer(given: Any, args: Any) -> dict[str, Any]:
    """The block for the type in `given`, or for `optim`, with the arguments' values that this type has."""
    kind = given.get("type") if isinstance(given, dict) else None
    if kind is None or kind == "auto":
        optim = OptimizerNames(args.optim).value
        kind = _OPTIMIZERS.get(optim.removeprefix("paged_").split("_")[0])
        if not kind or args.optim_args:
            raise ValueError(
                f"zero: the engine does not follow optim={optim!r}, optim_args={args.optim_args!r} of the TrainingArguments: leave "
                "them out, or give `optimizer` with a type in the configuration"
            )
    adam = {"betas": [args.adam_beta1, args.adam_beta2], "eps": args.adam_epsilon}
    takes = [key for word, keys in _TAKES.items() if word in str(kind).lower() for key in keys]
    params = {"lr": args.learning_rate, "weight_decay": args.weight_decay, **{key: adam[key] for key in takes}}
    return {"type": kind, "params": params}


class Sharded:
    """What makes a Trainer's subclass one of the engine: class Mine(Sharded, SFTTrainer).

    What `zero_config` leaves out or leaves "auto" comes from the TrainingArguments, and so does the schedule of learning
    rates. `zero_options`: those of fully_shard."""

    def __init__(self: Any, *args: Any, zero_config: Any = None, zero_options: Any = None, **kwargs: Any) -> None:
        self._zero = zero_config or {}, zero_options or {}
        super().__init__(*args, **kwargs)
        if self.optimizer or self.lr_scheduler or self.optimizer_cls_and_kwargs:
            raise ValueError(
                "zero: the optimizer is the engine's: leave out `optimizers` and `optimizer_cls_and_kwargs`, and choose it by `optim` of the "
                "TrainingArguments or `optimizer` of the configuration"
            )
        self.create_optimizer()

    def _configuration(self: Any) -> dict[str, Any]:
        given, args = self._zero[0], self.args
        config = given if isinstance(given, dict) else json.loads(config_text(given))
        if "scheduler" in config:
            raise ValueError("zero: the TrainingArguments give the schedule; take `scheduler` out of the configuration")
        if args.fp16_full_eval or args.bf16_full_eval:
            raise ValueError("zero: evaluations have the type of the training; leave out fp16_full_eval and bf16_full_eval")
        ours = {
            "train_batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
            "train_micro_batch_size_per_gpu": args.per_device_train_batch_size,
            "gradient_accumulation_steps": args.gradient_accumulation_steps,
            "gradient_clipping": args.max_grad_norm or 0,
            "optimizer": _optimizer(config.get("optimizer"), args),
            "bf16": {"enabled": args.bf16},
            "fp16": {"enabled": args.fp16},
        }
        merged: dict[str, Any] = _merged(config, ours)
        return merged

    def create_optimizer(self: Any, model: Any = None) -> zero.Optimizer:
        if self.optimizer is None:
            decays = set(self.get_decay_parameter_names(self.model))
            no_decay = {name for name, _ in self.model.named_parameters()} - decays
            options = {"device": self.args.device} | self._zero[1]
            self.engine = zero.fully_shard(self.model, self._configuration(), no_decay=no_decay, **options)
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
