#!/usr/bin/env bash
# deepspeed_test.sh COMPARE.PY PRINT_SCHEDULE: skips where no Python with DeepSpeed is; PYTHON names one.
status=0
"${PYTHON:-python3}" "$1" "$2" || status=$?
[[ $status != 3 && $status != 127 ]] || { echo "SKIPPED: DeepSpeed is not installed (PYTHON names another Python)"; exit 0; }
exit "$status"
