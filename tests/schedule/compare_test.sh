#!/usr/bin/env bash
# compare_test.sh COMPARE.PY PRINT_SCHEDULE deepspeed|torch: skips where no Python with that package is; PYTHON names one.
python=${PYTHON:-python3} status=0
[[ -n ${PYTHON-} || ! -x ~/.cache/zero-python/bin/python ]] || python=~/.cache/zero-python/bin/python
"$python" "$@" || status=$?
[[ $status != 3 && $status != 127 ]] || { echo "SKIPPED: $3 is not installed (PYTHON names another Python)"; exit 0; }
exit "$status"
