"""wheel.py OUT.whl FILE...: a wheel of these files, the same bytes for the same files. What a path has from its last folder `zero` on is
the place in the package; README.md is the description. PyPI's `zero` is another project."""

import base64
import hashlib
import re
import sys
import zipfile
from pathlib import Path

out, *paths = sys.argv[1:]
name, version, tag = re.fullmatch(r"(\w+)-([\d.]+)-(\S+)\.whl", Path(out).name).groups()  # type: ignore[union-attr]
info = f"{name}-{version}.dist-info"
files = {p[p.rindex("/zero/") + 1 :]: Path(p).read_bytes() for p in paths if "/zero/" in p}
readme = next(Path(p) for p in paths if p.endswith("README.md")).read_text()
metadata = f"""Metadata-Version: 2.1
Name: {name.replace("_", "-")}
Version: {version}
Summary: ZeRO data parallelism for any PyTorch model
Requires-Python: >=3.10
Requires-Dist: torch>=2.6
Description-Content-Type: text/markdown

{readme}"""
wheel = f"Wheel-Version: 1.0\nGenerator: wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n"
scripts = b"[console_scripts]\nzero-deepspeed = zero.deepspeed.__main__:main\n"
files |= {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode(), f"{info}/top_level.txt": b"zero\n"}
files[f"{info}/entry_points.txt"] = scripts


def record(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


rows = "".join(record(path, data) for path, data in sorted(files.items()))
files[f"{info}/RECORD"] = (rows + f"{info}/RECORD,,\n").encode()
with zipfile.ZipFile(out, "w") as archive:
    for path, data in sorted(files.items()):
        entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
        entry.external_attr = (0o755 if path.endswith(".so") else 0o644) << 16
        archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
