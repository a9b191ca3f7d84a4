"""The engine that deepspeed.initialize returns."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import zero
from zero._abi import ZeroError
from zero._declared import engines
from zero._parts import part
from zero.deepspeed import ops, schedules
from zero.deepspeed.checkpoint import Checkpoints
from zero.deepspeed.comm import get_local_rank, init_distributed
from zero.deepspeed.config import cleaned, free_order, loaded
from zero.deepspeed.heads import commit_head
from zero.deepspeed.loader import DeepSpeedDataLoader
from zero.deepspeed.optimizer import ZeROOptimizer
from zero.deepspeed.partition import mark, without_closed
from zero.deepspeed.utils import log_dist


def _of_zero(*keys: str) -> Callable[[Any], Any]:
    return lambda engine: next(filter(None, map(engine.config.get("zero_optimization", {}).get, keys)), None)


# Methods that answer with one value.
_ANSWERS: dict[str, Callable[[Any], Any]] = {
    "train_batch_size": lambda engine: engine.zero.micro_batch * engine._gas * engine.world_size,
    "train_micro_batch_size_per_gpu": lambda engine: engine.zero.micro_batch,
    "gradient_accumulation_steps": lambda engine: engine._gas,
    "get_batch_info": lambda engine: (engine.train_batch_size(), engine.zero.micro_batch, engine._gas),
    "gradient_clipping": lambda engine: float(engine.zero.setting("gradient_clipping") or 0),
    "zero_optimization": lambda engine: engine.stage > 0,
    "zero_optimization_stage": lambda engine: engine.stage,
    "zero_optimization_partition_gradients": lambda engine: engine.stage > 1,
    "zero_optimization_partition_weights": lambda engine: engine.stage > 2,
    "zero_gather_16bit_weights_on_model_save": _of_zero(
        "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"
    ),
    "zero_offload_optimizer": _of_zero("offload_optimizer"),
    "zero_offload_param": _of_zero("offload_param"),
    "fp16_enabled": lambda engine: engine.zero.dtype == torch.float16,
    "bfloat16_enabled": lambda engine: engine.zero.dtype == torch.bfloat16,
    "dynamic_loss_scale": lambda engine: engine.fp16_enabled() and not engine.config["fp16"].get("loss_scale"),
    "steps_per_print": lambda engine: engine.config.get("steps_per_print"),
    "optimizer_name": lambda engine: ops.name_of(engine.config.get("optimizer", {})) or type(engine.basic_optimizer).__name__,
    "optimizer_params": lambda engine: engine.config.get("optimizer", {}).get("params"),
    "scheduler_name": lambda engine: (engine.config.get("scheduler") or {}).get("type"),
    "scheduler_params": lambda engine: (engine.config.get("scheduler") or {}).get("params"),
    "wall_clock_breakdown": lambda engine: False,
    "get_data_parallel_rank": lambda engine: engine.global_rank,
    "get_data_parallel_world_size": lambda engine: engine.world_size,
    "get_global_grad_norm": lambda engine: engine._grad_norm,  # of the last step, before clipping; None: there was none
    "was_step_applied": lambda engine: engine._applied,
    "get_lr": lambda engine: engine._of_groups("lr"),
    "get_mom": lambda engine: engine._of_groups("momentum" if engine.optimizer_name() in ("SGD", "RMSprop") else "betas"),
    "empty_partition_cache": lambda engine: None,  # the engine keeps no parameters between two passes
}


class DeepSpeedEngine(Checkpoints, nn.Module):
    """The model on a zero.Engine, `zero`, by DeepSpeed's names. Names that it lacks are the model's."""

    def __init__(
        self,
        model: nn.Module,
        config: dict[str, Any],
        optimizer: Any,
        model_parameters: Any,
        lr_scheduler: Any,
        training_data: Any,
        collate_fn: Any,
    ) -> None:
        super().__init__()
        self._modules["module"] = model
        self.__dict__["module"] = model
        self.config, self.collate_fn = config, collate_fn
        trains = optimizer is not None or "optimizer" in config
        before: Any = engines.get(model, lambda: None)()
        self._evaluates: bool = before is not None and before.trains and not trains  # another engine's model
        if self._evaluates:  # for which Lightning takes all hooks off
            before.hook_again()
        elif before is not None:  # the model's parameters train again, and an optimizer may ask which do
            _give_back(before)
        if optimizer is None and trains:
            optimizer = ops.of_config(config["optimizer"], model, model_parameters)
        elif optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = optimizer(model_parameters)
        settings = cleaned(config, without=("optimizer",) if optimizer is not None else ())
        self.zero: zero.Engine = before
        if not self._evaluates:
            self.zero = zero.fully_shard(
                model, settings, optimizer=optimizer, train=trains, rename=lambda name: name, free_order=free_order(settings)
            )
        self.global_steps = self.global_samples = self.micro_steps = self.skipped_steps = 0
        self.loaded_checkpoint_tag: str | None = None
        self._managed: bool = config.get("managed_gradient_accumulation", True)  # else each step() is a boundary
        self._boundary: bool | None = None if self._managed else True
        self._grad_norm: float | None = None
        self._applied = self._compiled = False
        self._unsynced = 0
        self.local_rank, self.global_rank, self.world_size = get_local_rank(), self.zero.rank, self.zero.size
        self.dp_world_size, self.mp_world_size, self.device = self.world_size, 1, self.zero.device
        self.tput_timer = SimpleNamespace(update_epoch_count=lambda: None)  # loops call it after each epoch; nothing is timed
        self._scaled = True
        self._gas, self.stage = self.zero.accumulation_steps, int(self.zero.setting("zero_optimization.stage") or 0)
        if self.stage == 3:
            mark(model.parameters())
            if self.zero.rank != 0:
                model.register_state_dict_post_hook(without_closed)  # type: ignore[no-untyped-call]
        commit_head(self.zero)
        self.basic_optimizer = (optimizer or self.zero.optimizer) if trains else None
        self.optimizer = ZeROOptimizer(self.basic_optimizer, self) if trains else None
        self.lr_scheduler = self._scheduler(lr_scheduler)
        self.training_dataloader = self.deepspeed_io(training_data) if training_data is not None else None

    def _scheduler(self, given: Any) -> Any:
        if given is not None:
            return given(self.basic_optimizer) if callable(given) else given
        block = self.config.get("scheduler")
        return schedules.from_config(block, self.basic_optimizer) if block and self.basic_optimizer else None

    def __getattr__(self, name: str) -> Any:
        if name in _ANSWERS:
            return partial(_ANSWERS[name], self)
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = self.__dict__.get("module")
            if module is not None and hasattr(module, name):
                return getattr(module, name)
            from zero.deepspeed.names import reason  # which imports this module

            why = reason(name)
            if why is None:
                raise
            raise AttributeError(f"zero: engine.{name} is not there: {why}") from None

    # ---- training ----

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Returns the loss, divided by the accumulation steps as its gradients are."""
        assert self.optimizer is not None, "must provide optimizer during init in order to use backward"
        self._scaled, divisor = True, self._gas if scale_wrt_gas else 1
        factor = self.zero.accumulation_steps / divisor  # the engine divides by the configuration's
        self.zero.backward(loss * factor if factor != 1 else loss, retain_graph=retain_graph)
        return loss / divisor

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """For engine.scale(loss).backward() in place of engine.backward(loss). The backward divides by the accumulation steps, as in
        DeepSpeed."""
        assert loss.numel() == 1, "scale() takes the scalar tensor of a loss"
        self._scaled = True
        factor = self.zero.accumulation_steps / self._gas  # the engine divides by the configuration's
        return self.zero.scaled(loss * factor if factor != 1 else loss)

    def is_gradient_accumulation_boundary(self) -> bool:
        return (self.micro_steps + 1) % self._gas == 0 if self._boundary is None else self._boundary

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        assert self._managed, "set_gradient_accumulation_boundary() needs managed_gradient_accumulation"
        self._boundary = is_boundary

    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """An update and a step of the schedule at a boundary; else the micro-step is kept, whatever zero_grad() comes next."""
        assert self.optimizer is not None, "must provide optimizer during init in order to use step"
        assert not self._unsynced, "It is illegal to call Engine.step() inside no_sync context manager"
        if not self._scaled and self._gas != self.zero.accumulation_steps:
            raise ZeroError(
                "zero: set_train_batch_size has changed the accumulation steps, by which a plain loss.backward() does not divide: call "
                "engine.backward(loss), or engine.scale(loss).backward()"
            )
        self._applied = self._scaled = False
        samples = self.zero.samples
        info = self.zero.step(last=self.is_gradient_accumulation_boundary())
        if info.updated:
            self._grad_norm, self._applied = info.grad_norm, not info.skipped
            self.skipped_steps += info.skipped
            if self._applied and self.lr_scheduler is not None:
                self.lr_scheduler.step(**(lr_kwargs or {}))
            self.global_steps += 1
            self.global_samples += self.train_batch_size() if self._managed else self.zero.samples - samples
            every = self.config.get("steps_per_print") or 0
            if every and self.global_steps % every == 0:
                log_dist(f"step={self.global_steps}, skipped={self.skipped_steps}, lr={self.get_lr()}, mom={self.get_mom()}", ranks=[0])
        self.micro_steps += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        if not self._evaluates:
            self.zero.optimizer.zero_grad()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards inside are not the last one of a step. The engine reduces as its stage has it."""
        self._unsynced += 1
        try:
            with self.zero.no_sync():
                yield
        finally:
            self._unsynced -= 1

    coalesce_grad_reduction = no_sync

    def deepspeed_io(
        self,
        dataset: Any,
        batch_size: int | None = None,
        route: str = "train",
        pin_memory: bool = True,
        data_sampler: Any = None,
        collate_fn: Callable[[Any], Any] | None = None,
        num_local_io_workers: int | None = None,
    ) -> DeepSpeedDataLoader:
        """A loader of this rank's micro-batches."""
        return DeepSpeedDataLoader(
            dataset,
            batch_size or self.train_micro_batch_size_per_gpu(),
            data_sampler,
            route == "train",
            collate_fn=collate_fn or self.collate_fn,
            num_workers=num_local_io_workers or 0,
            drop_last=bool(self.config.get("dataloader_drop_last")),
        )

    def compile(self, backend: Any = None, compile_kwargs: dict[str, Any] | None = None, **_: Any) -> None:
        self.module.compile(**({"backend": backend} if backend else {}), **(compile_kwargs or {}))
        self._compiled = True

    @property
    def is_compiled(self) -> bool:
        return self._compiled

    def destroy(self) -> None:
        """The model is a plain one again; at stage 3 it is cut, as zero.Init cuts it. Collective."""
        if not self._evaluates and engines.get(self.module, lambda: None)() is self.zero:
            _give_back(self.zero)

    # ---- what it is told ----

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """By other accumulation steps."""
        rows = self.train_micro_batch_size_per_gpu() * self.dp_world_size
        if train_batch_size % rows:
            raise ValueError("Train batch size must be divisible by micro-batch data parallelism")
        self._gas = train_batch_size // rows

    # ---- what has come of it ----

    def _of_groups(self, key: str) -> list[Any]:
        return [group.get(key, 0.0) for group in self.basic_optimizer.param_groups] if self.basic_optimizer else []

    @property
    def cur_scale(self) -> float:
        return self.zero.loss_scale

    loss_scale = cur_scale

    @property
    def overflow(self) -> bool:
        return self.zero.info.skipped

    # ---- between steps ----

    def offload_states(self, include: Any = None, device: Any = "cpu", pin_memory: bool = True, non_blocking: bool = False) -> None:
        """All states, at once: the device is free for something else until reload_states()."""
        self.zero.park(getattr(device, "value", device))

    def reload_states(self, non_blocking: bool = False) -> None:
        self.zero.unpark()


def _give_back(engine: zero.Engine) -> None:
    """The model is the program's again, without micro-steps of a step that has begun."""
    engine.optimizer.zero_grad()
    engine.close(give_back=True, keep=part if int(engine.setting("zero_optimization.stage") or 0) == 3 else None)


def initialize(
    args: Any = None,
    model: nn.Module | None = None,
    optimizer: Any = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    config: Any = None,
    mesh_param: Any = None,
    config_params: Any = None,
) -> tuple[DeepSpeedEngine, Any, Any, Any]:
    """The engine, its optimizer, a loader of `training_data`, and the schedule of the learning rate."""
    assert model is not None, "deepspeed.initialize requires a model"
    sizes = [getattr(mpu, f"get_{kind}_parallel_world_size", lambda: 1)() for kind in ("model", "tensor_model", "pipeline_model")]
    if sizes != [1, 1, 1] or mesh_param is not None:
        raise ValueError("zero: the ranks of an engine are data parallel: leave out mesh_param, and an mpu of model parallel ranks")
    given = getattr(args, "deepspeed_config", None) or getattr(args, "deepscale_config", None)
    assert given is None or config is None, "deepspeed.initialize: config and args.deepspeed_config both name a configuration: give one"
    config = next((value for value in (config, config_params, given) if value is not None), None)
    assert config is not None, "DeepSpeed requires --deepspeed_config to specify configuration file"
    init_distributed(distributed_port=distributed_port, dist_init_required=dist_init_required)
    engine = DeepSpeedEngine(model, loaded(config), optimizer, model_parameters, lr_scheduler, training_data, collate_fn)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler
