# A Python that imports packages once, for scripts that start it many times: an import takes seconds of CPU time. Sourced.
#   once PYTHON MODULE...   starts PYTHON, which imports those of the modules that it has. From then on $python, called as PYTHON would
#                           be, runs in a fork of that process: with the caller's arguments, directory, stdin, stdout and stderr, but
#                           not with its environment. One call at a time.

once() {
    local folder
    folder=$(mktemp -d "${TEST_TMPDIR:-/tmp}/once-XXXXXX")
    mkfifo "$folder/ask" "$folder/answer"
    # shellcheck disable=SC2016
    printf '#!/usr/bin/env bash\necho $$ >"${0%%/*}/ask" && read -r status <"${0%%/*}/answer" && exit "$status"\n' >"$folder/python"
    chmod +x "$folder/python"
    "$1" - "$folder" "${@:2}" <<'PY' &
import gc
import importlib
import os
import runpy
import sys
import traceback

folder, *modules = sys.argv[1:]
for module in modules:
    try:
        importlib.import_module(module)
    except Exception:
        pass  # the caller's own import says why
gc.freeze()
open(f"{folder}/ready", "w").close()
while True:
    with open(f"{folder}/ask") as ask:
        caller = f"/proc/{ask.read().strip()}"
    child = os.fork()
    if not child:
        break
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(f"{folder}/answer", "w") as answer:
        print(status & 255, file=answer)
for fd in range(3):
    os.dup2(os.open(f"{caller}/fd/{fd}", os.O_WRONLY | os.O_APPEND if fd else os.O_RDONLY), fd)
os.chdir(f"{caller}/cwd")
with open(f"{caller}/cmdline") as line:  # bash, this script, and its arguments
    script, *sys.argv[1:] = line.read().split("\0")[2:-1]
status = 0
try:
    if script == "-":
        exec(compile(sys.stdin.read(), script, "exec"), {"__name__": "__main__"})
    elif script == "-c":
        exec(compile(sys.argv.pop(1), script, "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(script, run_name="__main__")
except SystemExit as end:
    status = end.code if isinstance(end.code, int) else int(end.code is not None)
    if end.code is not None and not isinstance(end.code, int):
        print(end.code, file=sys.stderr)
except BaseException:
    traceback.print_exc()
    status = 1
sys.stdout.flush()
sys.stderr.flush()
os._exit(status)  # without taking all modules down, which takes longer than most calls
PY
    # shellcheck disable=SC2064
    trap "kill $! && wait $! || :" EXIT
    until [[ -e $folder/ready ]]; do
        kill -0 $! || return 1
        sleep 0.05
    done
    python=$folder/python
}
has_modules() { # PYTHON MODULE...: without importing them
    "$1" -c 'import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))' "${@:2}" 2>/dev/null
}
