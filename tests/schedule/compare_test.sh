#!/usr/bin/env bash
# compare_test.sh COMPARE.PY PRINT_SCHEDULE deepspeed|torch: skips where no Python with that package is; PYTHON names one.
python=${PYTHON:-$(getent passwd "$(id -u)" | cut -d: -f6)/.cache/zero-python/bin/python} status=0
[[ -n ${PYTHON-} || -x $python ]] || python=python3
"$python" "$@" || status=$?
[[ $status == 3 || $status == 127 ]] || exit "$status"
echo "SKIPPED: $3 is not installed (PYTHON names another Python)"
[[ $3 != torch ]] || exit "${ZERO_SET_UP:-0}"
