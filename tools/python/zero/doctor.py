"""python -m zero.doctor: what is installed here, whether it fits together, and a training of two steps on every device."""

import math
import platform
import sys
from pathlib import Path
from typing import Any


def _train(device: Any, state: str) -> str:
    """Two steps, with the optimizer's state on the device or the cpu, which is pinned where the device is a GPU."""
    import torch

    import zero

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)).to(device)
    offload = {"offload_optimizer": {"device": state}} if state != "device" else {}
    engine = zero.fully_shard(
        model, {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3} | offload}, device=torch.device(device)
    )
    for _ in range(2):
        engine.backward(model(torch.ones(4, 8, device=device)).square().mean())
        norm = engine.step().grad_norm
    if not math.isfinite(norm):
        raise RuntimeError(f"the gradients' norm is {norm}")
    said = f"2 steps, gradient norm {norm:.3g}, {engine.size} rank(s), {engine.device}, state on the {state}"
    engine.close()
    return said


def report() -> bool:
    """Prints a line for each check. Returns whether all is well."""
    import torch

    import zero
    from zero import _abi
    from zero._place import gpu_faults

    def row(name: str, text: str, well: bool = True) -> bool:
        print(f"{'ok ' if well else 'BAD'} {name:9} {text}", flush=True)
        return well

    libraries = _abi.openmp_libraries()
    advice = "" if len(libraries) == 1 else ": there must be one; import torch first"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    library = Path(_abi.library_path())
    cuda = f", {'without' if b'this build has no CUDA' in library.read_bytes() else 'with'} CUDA" if library.exists() else ""
    well = row("zero", f"{zero.__version__}, {library}{cuda}")
    well &= row("python", f"{platform.python_version()}, {sys.executable}", sys.version_info >= (3, 10))
    well &= row("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    well &= row("OpenMP", ", ".join(libraries) + advice, len(libraries) == 1)
    if not count:
        row("GPU", "none that PyTorch uses")
    for i in range(count):
        well &= row("GPU", f"{torch.cuda.get_device_name(i)}, for PyTorch's CUDA {torch.version.cuda}")
    for fault in gpu_faults():
        well &= row("GPU", fault, False)
    for device in ("cpu", *(f"cuda:{i}" for i in range(count))):
        for state in ("device", "cpu") if device != "cpu" else ("device",):
            try:
                well &= row("training", _train(device, state))
            except Exception as error:  # noqa: BLE001
                well &= row("training", f"on {device}, state on the {state}: {error}", False)
    return well


if __name__ == "__main__":
    sys.exit(0 if report() else 1)
