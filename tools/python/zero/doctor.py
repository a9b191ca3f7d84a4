"""python -m zero.doctor: what is installed here, whether it fits together, and a training of two steps."""

import math
import platform
import sys
from pathlib import Path


def report() -> bool:
    """Prints a line for each check. Returns whether all is well."""
    import torch

    import zero
    from zero import _abi

    def row(name: str, text: str, well: bool = True) -> bool:
        print(f"{'ok ' if well else 'BAD'} {name:9} {text}")
        return well

    libraries = _abi.openmp_libraries()
    advice = "" if len(libraries) == 1 else ": there must be one; import torch first"
    gpu = f"{torch.cuda.get_device_name()}: not tried by anyone yet" if torch.cuda.is_available() else "none"
    library = Path(_abi.library_path())
    cuda = f", {'without' if b'this build has no CUDA' in library.read_bytes() else 'with'} CUDA" if library.exists() else ""
    well = row("zero", f"{zero.__version__}, {library}{cuda}")
    well &= row("python", f"{platform.python_version()}, {sys.executable}", sys.version_info >= (3, 10))
    well &= row("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    well &= row("OpenMP", ", ".join(libraries) + advice, len(libraries) == 1)
    well &= row("GPU", gpu)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    engine = zero.fully_shard(model, {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}})
    for _ in range(2):
        engine.backward(model(torch.ones(4, 8)).square().mean())
        norm = engine.step().grad_norm
    return well & row("training", f"2 steps, gradient norm {norm:.3g}, {engine.size} rank(s), {engine.device}", math.isfinite(norm))


if __name__ == "__main__":
    sys.exit(0 if report() else 1)
