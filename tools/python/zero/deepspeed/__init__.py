"""Programs written for DeepSpeed, on this engine: `zero-deepspeed train.py …`, or zero.deepspeed.install() before other imports.

`path/` has a package `deepspeed` with its metadata, which libraries look for. It is used only where it is on the path: an installed
DeepSpeed is never shadowed by accident."""

import os
import sys
from pathlib import Path

FOLDER = str(Path(__file__).parent / "path")
VERSION = "0.19.8+zero"
_ASK = ("transformers", "accelerate", "deepspeed")  # these ask once, when they are imported, whether DeepSpeed is there


def environment() -> dict[str, str]:
    """The variables of a child process that imports deepspeed from here."""
    path = [FOLDER, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}


def install() -> None:
    """From here on, this process and its children import deepspeed from here."""
    if FOLDER in sys.path:
        return
    early = [name for name in _ASK if name in sys.modules]
    if early:
        raise ImportError(
            f"zero: {early[0]} is imported already, and asks for DeepSpeed once: call zero.deepspeed.install() before it, or start the "
            "program by zero-deepspeed"
        )
    sys.path.insert(0, FOLDER)
    os.environ.update(environment())
