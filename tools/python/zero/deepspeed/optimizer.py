"""What engine.optimizer is to a program: the optimizer's groups, and the state of the loss scale."""

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from zero.deepspeed.engine import DeepSpeedEngine


class _Bare(nn.Module):
    """A module without parameters, as those that DeepSpeed has touched at stage 3."""

    def ds_external_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return []


class ParameterOffload:
    """Programs take DeepSpeed's hooks off for generate(), and put them on again. The engine's stay: it has no such hooks."""

    def __init__(self) -> None:
        self.module = _Bare()
        self.forward_hooks: list[Any] = []
        self.backward_hooks: list[Any] = []

    def _register_deepspeed_module(self, module: nn.Module) -> None: ...

    _register_hooks_recursively = _register_deepspeed_module


class ZeROOptimizer:
    """The optimizer of the program or of the configuration, `optimizer`, whose attributes it has, and DeepSpeed's own."""

    def __init__(self, optimizer: Any, engine: "DeepSpeedEngine") -> None:
        self.optimizer, self._engine = optimizer, engine
        if engine.stage == 3:
            self.parameter_offload = ParameterOffload()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optimizer"], name)

    @property
    def cur_scale(self) -> float:
        return self._engine.zero.loss_scale

    loss_scale = cur_scale

    @property
    def overflow(self) -> bool:
        return self._engine.zero.info.skipped

    def step(self, closure: Any = None) -> None:
        self._engine.step()

    def backward(self, loss: Any, retain_graph: bool = False) -> None:
        self._engine.backward(loss, retain_graph=retain_graph, scale_wrt_gas=False)


DeepSpeedOptimizer = DeepSpeedZeroOptimizer = DeepSpeedZeroOptimizer_Stage3 = ZeROOptimizer
