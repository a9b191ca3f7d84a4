"""The modules that a program may import as deepspeed.…, and what is not there."""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from zero._abi import ZeroError
from zero.deepspeed import (
    VERSION,
    accelerator,
    checkpointing,
    comm,
    config,
    engine,
    loader,
    ops,
    optimizer,
    partition,
    schedules,
    utils,
    zero_to_fp32,
)
from zero.deepspeed.arguments import add_config_arguments

# Modules of deepspeed by those that they are here; None: they have nothing but the modules in them.
MODULES: dict[ModuleType | None, str] = {
    None: "checkpoint runtime runtime.activation_checkpointing",
    accelerator: "accelerator accelerator.real_accelerator",
    checkpointing: "checkpointing runtime.activation_checkpointing.checkpointing",
    comm: "comm comm.comm",
    config: "runtime.config",
    engine: "runtime.engine",
    loader: "runtime.dataloader",
    ops: "ops ops.adagrad ops.adam ops.adam.cpu_adam ops.adam.fused_adam ops.lamb ops.lion",
    partition: "zero runtime.zero runtime.zero.offload_config runtime.zero.partition_parameters utils.tensor_fragment utils.z3_leaf_module",
    optimizer: "runtime.base_optimizer runtime.zero.stage3 runtime.zero.stage_1_and_2",
    schedules: "runtime.lr_schedules",
    utils: "utils utils.init_on_device utils.logging utils.nvtx runtime.utils checkpoint.utils",
    zero_to_fp32: "utils.zero_to_fp32",
}
_ATTRIBUTES: dict[str, Any] = {
    "__version__": VERSION,
    "DeepSpeedEngine": engine.DeepSpeedEngine,
    "OnDevice": utils.OnDevice,
    "add_config_arguments": add_config_arguments,
    "dist": comm,
    "get_accelerator": accelerator.get_accelerator,
    "init_distributed": comm.init_distributed,
    "initialize": engine.initialize,
    "log_dist": utils.log_dist,
    "logger": utils.logger,
}
# Names of modules, classes, functions and methods that are not there, and what a program does instead.
_REFUSED: dict[tuple[str, ...], str] = {
    ("pipe", "PipelineModule", "LayerSpec", "TiedLayerSpec", "PipelineEngine", "train_batch", "eval_batch"): (
        "the engine has no pipelines: give it the whole model, which stage 3 cuts over the ranks"
    ),
    ("tp_model_init", "set_autotp_mode", "module_inject", "replace_transformer_layer", "tensor_parallel"): (
        "the engine cuts no layers: leave tensor parallelism out, stage 3 shards every layer"
    ),
    ("sequence", "sequence_parallel", "ulysses_sp", "DistributedAttention", "UlyssesSPAttentionHF"): (
        "sequences are not cut over ranks: use activation checkpoints, or a smaller micro-batch"
    ),
    ("moe", "MoE", "groups", "split_params_into_different_moe_groups_for_optimizer"): (
        "DeepSpeed's experts and groups are not there: use the model's own experts, which stage 3 cuts as all parameters"
    ),
    ("inference", "init_inference", "InferenceEngine", "DeepSpeedInferenceConfig", "DeepSpeedHybridEngine"): (
        "the engine is for training: call generate() on its model, or save_16bit_model and serve the file"
    ),
    ("OnebitAdam", "OnebitLamb", "ZeroOneAdam"): "write zero_quantized_gradients in zero_optimization for fewer bits on the wire",
    ("sparse_attention", "SparseSelfAttention"): "give the model an attention of its own, such as torch's flex_attention",
    ("compression", "init_compression", "redundancy_clean"): "compress the model by another library after the training",
    ("autotuning",): "`zero plan` finds a configuration that fits",
    ("profiling", "FlopsProfiler", "get_model_profile", "flops_profiler"): "use torch.profiler, or `trace` in the configuration",
    ("safe_set_full_fp32_param", "safe_set_full_grad", "safe_set_full_optimizer_state"): (
        "write in GatheredParameters(…, modifier_rank=0); moments and gradients are the engine's"
    ),
    ("safe_get_local_fp32_param", "safe_get_local_grad", "safe_get_local_optimizer_state"): "ask for the whole one: safe_get_full_…",
    ("DeepSpeedTransformerLayer", "DeepSpeedTransformerConfig"): "use the model's own layers, or torch.compile",
}


def reason(name: str) -> str | None:
    """What to do instead; None: nobody has asked for this name."""
    return next((sentence for names, sentence in _REFUSED.items() if name in names), None)


class Missing:
    """The attributes that a module lacks: one that is refused may be named and imported, and says so where it is used."""

    def __init__(self, module: str, why: str | None = None) -> None:
        self.module, self.why = module, why

    def __call__(self, name: str) -> Any:
        why = None if name.startswith("__") else self.why or reason(name)
        if why is None:
            raise AttributeError(f"zero: {self.module}.{name} is not there: the page From DeepSpeed lists what is")
        sentence = f"zero: {self.module}.{name} is not there: {why}"

        def __init__(self: Any, *_: Any, **__: Any) -> None:
            raise ZeroError(sentence)

        return type(name, (), {"__init__": __init__, "__doc__": sentence})


class _Finder(MetaPathFinder, Loader):
    """A module that is refused may be imported, too. For another one that is not there, a sentence."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if not fullname.startswith("deepspeed."):
            return None
        if not any(map(reason, fullname.split("."))):
            raise ModuleNotFoundError(f"zero: {fullname} is not there: the page From DeepSpeed lists what is", name=fullname)
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        why = next(filter(None, map(reason, module.__name__.split("."))))
        module.__dict__["__getattr__"] = Missing(module.__name__, why)


def fill(package: str) -> None:
    """The package `deepspeed` gets its names and modules."""
    root = sys.modules[package]
    root.__dict__.update(_ATTRIBUTES)
    modules = {f"{package}.{name}": module for module, names in MODULES.items() for name in names.split()}
    for full in sorted(modules):  # a parent comes before what is in it
        found = modules[full] or ModuleType(full)
        found.__spec__ = found.__spec__ or ModuleSpec(full, None, is_package=True)
        found.__dict__.setdefault("__path__", [])  # the finder below says what is not in it
        if not hasattr(found, "__getattr__"):
            found.__dict__["__getattr__"] = Missing(f"{package}.{MODULES[modules[full]].split()[0]}" if modules[full] else full)
        sys.modules[full] = found
        parent, _, last = full.rpartition(".")
        attributes = sys.modules[parent].__dict__
        if isinstance(attributes.get(last, root), ModuleType):  # of a function and a module, the function; of another module, this one
            attributes[last] = found
    sys.meta_path.append(_Finder())
