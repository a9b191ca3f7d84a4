"""wheel_test.py WHEEL: pip installs it into an empty place, it needs nothing but torch, and its doctor is content."""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

wheel = Path(sys.argv[1])
with tempfile.TemporaryDirectory() as place:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-cache-dir", "--target", place, wheel]
    pip.append("--break-system-packages")  # which it does not: the place is empty
    subprocess.run(pip, check=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("ZERO_LIB", "PYTHONPATH")} | {"PYTHONPATH": place}
    doctor = subprocess.run([sys.executable, "-m", "zero.doctor"], env=environment, capture_output=True, text=True)
    print(doctor.stdout, doctor.stderr)
    assert doctor.returncode == 0 and "BAD" not in doctor.stdout
    kernels = b"-arch sm_" in Path(place, "zero", "libzero.so").read_bytes()
    assert f"{place}/zero/libzero.so, {'with' if kernels else 'without'} CUDA" in doctor.stdout
    needed = subprocess.run(["objdump", "-p", f"{place}/zero/libzero.so"], capture_output=True, text=True).stdout
    assert not any(name in needed for name in ("json", "xxhash", "uring", "gomp", "stdc++")), needed
with zipfile.ZipFile(wheel) as archive:
    assert all(entry.date_time == (1980, 1, 1, 0, 0, 0) for entry in archive.infolist())
    version = wheel.name.split("-")[1]
    assert f"Version: {version}\n" in archive.read(f"zero_sharding-{version}.dist-info/METADATA").decode()
    assert f"zero      {version}" in doctor.stdout
    names = set(archive.namelist())
assert "zero/py.typed" in names and len(names) > 10, names
