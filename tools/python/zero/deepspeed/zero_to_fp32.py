"""The weights of a checkpoint, in fp32, without an engine: functions, and the script in each checkpoint."""

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zero._files import step_directory
from zero.deepspeed.checkpoint import client_file, client_path, tag_of


def _pieces(place: Path) -> dict[str, torch.Tensor]:
    """Every parameter, from the pieces in the files of the ranks: see FORMAT.md of the engine's checkpoints."""
    from safetensors import safe_open

    manifest = json.loads((place / "manifest.json").read_text())
    state = {row["name"]: torch.empty(row["shape"], dtype=torch.float32) for row in manifest["params"]}
    for row in manifest["files"]:
        with safe_open(place / row["name"], "pt") as file:
            first = file.metadata() or {}
            for key in file.keys():  # noqa: SIM118
                kind, _, name = key.partition("/")
                if re.fullmatch(r"param(#\d+)?", kind):
                    piece, at = file.get_tensor(key).flatten(), int(first[key].split()[0])
                    state[name].view(-1)[at : at + piece.numel()] = piece
    return state


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: str | os.PathLike[str], tag: str | None = None, exclude_frozen_parameters: bool = False, lazy_mode: bool = False
) -> dict[str, torch.Tensor]:
    """Weights and buffers by the model's names. `lazy_mode` changes nothing: they are read once."""
    root = Path(checkpoint_dir)
    found = tag_of(root, tag)
    if found is None or client_path(root / found) is None:
        raise ValueError(
            f"zero: {root} has no checkpoint{f' {found}' if found else ', and no file latest'}: give the directory of save_checkpoint"
        )
    client = client_file(root / found)
    place = step_directory(root / found)
    state = _pieces(place)
    buffers = place / "program.bin"
    if buffers.exists():
        state |= torch.load(buffers, map_location="cpu", weights_only=True)
    state |= {name: state[first] for name, first in client["shared_params"].items() if first in state}
    return {name: t for name, t in state.items() if not exclude_frozen_parameters or name not in client["frozen"]}


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str | os.PathLike[str],
    output_dir: str,
    max_shard_size: str = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """pytorch_model.bin, or model.safetensors, in `output_dir`, as from_pretrained reads them."""
    state = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag, exclude_frozen_parameters)
    os.makedirs(output_dir, exist_ok=True)
    if not safe_serialization:
        torch.save(state, os.path.join(output_dir, "pytorch_model.bin"))
        return
    from safetensors.torch import save_file

    own = {name: t.clone() for name, t in state.items()}
    save_file(own, os.path.join(output_dir, "model.safetensors"), {"format": "pt"})


def load_state_dict_from_zero_checkpoint(model: nn.Module, checkpoint_dir: str | os.PathLike[str], tag: str | None = None) -> nn.Module:
    model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag), strict=False)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add: Any = parser.add_argument
    add("checkpoint_dir", help="the directory of save_checkpoint")
    add("output_dir", help="where pytorch_model.bin goes, or model.safetensors")
    add("--safe_serialization", action="store_true", help="model.safetensors")
    add("--max_shard_size", default="5GB", help="has no effect: the weights are one file")
    add("-t", "--tag", help="the checkpoint's tag; by default that in the file latest")
    add("--exclude_frozen_parameters", action="store_true")
    add("-d", "--debug", action="store_true", help="has no effect")
    args = parser.parse_args()
    convert_zero_checkpoint_to_fp32_state_dict(
        args.checkpoint_dir, args.output_dir, args.max_shard_size, args.safe_serialization, args.tag, args.exclude_frozen_parameters
    )
