"""style_test.py PYPROJECT.TOML FILE...: the package is formatted, and typed as the wheel has it."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

settings, *files = sys.argv[1:]
package = str(Path(next(f for f in files if f.endswith("__init__.py"))).parent)
run = lambda *command: subprocess.run([sys.executable, "-m", *command], check=True)
run("ruff", "format", "--no-cache", "--check", "--config", settings, package)
run("ruff", "check", "--no-cache", "--config", settings, package)
known, cache = Path(sys.prefix, "mypy"), Path(os.environ["TEST_TMPDIR"], "mypy")
if known.exists():  # tools/setup --python has read PyTorch's types
    shutil.copytree(known, cache)
run("mypy", "--config-file", settings, "--no-error-summary", "--cache-dir", str(cache), str(Path(find_spec("zero").origin).parent))
