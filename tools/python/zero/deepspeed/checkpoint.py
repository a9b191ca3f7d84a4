"""An engine's checkpoints by DeepSpeed's names: `save_dir`/TAG has the engine's own, and a file for what the program keeps with it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from zero._abi import ZeroError
from zero.deepspeed import VERSION

if TYPE_CHECKING:
    import zero

CLIENT = "mp_rank_00_model_states.pt"
_COUNTERS = ("global_steps", "global_samples", "skipped_steps")
_SCRIPT = '''#!/usr/bin/env python
"""zero_to_fp32.py CHECKPOINT OUTPUT: the weights of a checkpoint, in fp32."""
from zero.deepspeed.zero_to_fp32 import main

main()
'''


def tag_of(directory: Path, tag: str | None) -> str | None:
    """The tag, or that in the file `latest`."""
    latest = directory / "latest"
    return str(tag) if tag is not None else latest.read_text().strip() if latest.is_file() else None


def client_path(place: Path, rank: int = 0) -> Path | None:
    """The file of what the program has kept: of this rank, as stage 3 writes one on each rank, or of all."""
    names = (f"zero_pp_rank_{rank}_{CLIENT}", f"zero_pp_rank_0_{CLIENT}", CLIENT)
    return next((place / name for name in names if (place / name).is_file()), None)


def client_file(place: Path, rank: int = 0) -> dict[str, Any]:
    """What the program has kept: it may be of any class, as in DeepSpeed's file of this name, and is code of the file's."""
    path = client_path(place, rank)
    assert path is not None
    found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    if found.get("ds_version") != VERSION:
        raise ZeroError(
            f"zero: {place} is a checkpoint of DeepSpeed itself: convert it by its zero_to_fp32.py, and load that by engine.load_module_state_dict"
        )
    return found


class Checkpoints:
    """The methods of an engine."""

    if TYPE_CHECKING:
        zero: zero.Engine
        _evaluates: bool
        module: nn.Module
        lr_scheduler: Any
        global_steps: int
        global_rank: int
        micro_steps: int
        stage: int
        zero_gather_16bit_weights_on_model_save: Any

    def save_checkpoint(
        self,
        save_dir: str,
        tag: Any = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Collective. Frozen parameters are always there: a resume needs nothing else."""
        if not save_dir:
            raise ValueError(f"save_dir must be a non-empty string, got {save_dir!r}")
        root = Path(save_dir)
        tag = f"global_step{self.global_steps}" if tag is None else str(tag)
        tags: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(tags, tag)
        assert len(set(tags)) == 1, f"zero: save_checkpoint: the ranks give different tags: {tags}"
        place = root / tag
        place.mkdir(parents=True, exist_ok=True)
        for stale in place.glob(f"*{CLIENT}") if self.global_rank == 0 else ():
            stale.unlink()
        self.zero.save(place)
        self.zero.save_wait()
        each = self.stage == 3
        if each or self.global_rank == 0:
            names: dict[nn.Parameter, str] = {}
            tied = {name: names.setdefault(p, name) for name, p in self.module.named_parameters(remove_duplicate=False)}
            kept = {key: getattr(self, key) for key in _COUNTERS} | {
                "lr_scheduler": self.lr_scheduler.state_dict() if self.lr_scheduler is not None else None,
                "dp_world_size": dist.get_world_size(),
                "mp_world_size": 1,
                "ds_version": VERSION,
                "shared_params": {name: first for name, first in tied.items() if name != first},
                "frozen": [name for name, p in self.module.named_parameters() if not p.requires_grad],
            }
            torch.save((client_state or {}) | kept, place / (f"zero_pp_rank_{self.global_rank}_{CLIENT}" if each else CLIENT))
        if self.global_rank == 0:
            script = root / "zero_to_fp32.py"
            script.write_text(_SCRIPT)
            script.chmod(0o755)
            if save_latest:
                (root / "latest").write_text(tag)
        dist.barrier()
        return True

    def load_checkpoint(
        self,
        load_dir: str,
        tag: Any = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Collective. The path that was loaded and the program's own state; twice None: no tag is given, and there is no file latest."""
        root = Path(load_dir)
        tag = tag_of(root, tag)
        if tag is None:
            return None, None
        path = client_path(root / tag, self.global_rank)
        assert path is not None, f"zero: {root} has no checkpoint {tag}: give the tag of a save_checkpoint"
        kept = client_file(root / tag, self.global_rank)
        if custom_load_fn is not None:
            raise ZeroError("zero: load_checkpoint calls no custom_load_fn: load by engine.load_module_state_dict what is your own")
        self.zero.load(root / tag, weights_only=load_module_only or not load_optimizer_states or self._evaluates)
        self.micro_steps = 0  # no checkpoint has a step that has begun
        scheduler = kept.pop("lr_scheduler")
        if not load_module_only:
            for key in _COUNTERS:
                setattr(self, key, kept[key])
            if load_lr_scheduler_states and self.lr_scheduler is not None and scheduler is not None:
                self.lr_scheduler.load_state_dict(scheduler)
        client = {key: value for key, value in kept.items() if key not in (*_COUNTERS, "dp_world_size", "mp_world_size")}
        return os.path.join(load_dir, tag, path.name), client

    # ---- weights ----

    def module_state_dict(self, *args: Any, exclude_frozen_parameters: bool = False, **kwargs: Any) -> dict[str, Any]:
        state = self.module.state_dict(*args, **kwargs)
        frozen = {name for name, p in self.module.named_parameters() if not p.requires_grad} if exclude_frozen_parameters else set()
        return {name: value for name, value in state.items() if name not in frozen}

    def load_module_state_dict(self, state_dict: Any, strict: bool = True, custom_load_fn: Any = None, **_: Any) -> None:
        """Whole weights, by the module's names; DeepSpeed's dictionary has them as "module"."""
        self.zero.load_state_dict(state_dict.get("module", state_dict), strict)

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Any] | None:
        """Collective. Whole weights in the type of the training, on rank 0; None elsewhere."""
        if self.stage != 3:
            raise ValueError("this function requires ZeRO-3 mode")
        return self._consolidated_16bit_state_dict(exclude_frozen_parameters)

    def _consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Any] | None:
        state = self.zero.state_dict(rank0_only=True)
        if self.global_rank != 0:
            return None
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        made: dict[int, torch.Tensor] = {}  # tied ones stay one
        for name, value in list(state.items()):
            p = parameters.get(name)
            if p is not None and exclude_frozen_parameters and not p.requires_grad:
                del state[name]
            elif p is not None:
                state[name] = made.setdefault(id(p), value.to(self.zero.dtype))
        return state

    def save_16bit_model(
        self, save_dir: str, save_filename: str = "pytorch_model.bin", exclude_frozen_parameters: bool = False
    ) -> bool:
        """Collective. False: stage 3 without stage3_gather_16bit_weights_on_model_save."""
        if self.stage == 3 and not self.zero_gather_16bit_weights_on_model_save():
            return False
        state = self._consolidated_16bit_state_dict(exclude_frozen_parameters)
        if state is not None:
            os.makedirs(save_dir, exist_ok=True)
            torch.save(state, os.path.join(save_dir, save_filename))
        dist.barrier()
        return True

    save_fp16_model = save_16bit_model
