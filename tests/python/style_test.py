"""style_test.py PYPROJECT.TOML FILE...: the package is formatted, and typed as the wheel has it."""

import subprocess
import sys
from pathlib import Path

import zero

settings, *files = sys.argv[1:]
package = str(Path(next(f for f in files if f.endswith("__init__.py"))).parent)
run = lambda *command: subprocess.run([sys.executable, "-m", *command], check=True)
run("ruff", "format", "--no-cache", "--check", "--config", settings, package)
run("ruff", "check", "--no-cache", "--config", settings, package)
run("mypy", "--config-file", settings, "--no-error-summary", "--cache-dir=/dev/null", str(Path(zero.__file__).parent))
