#!/usr/bin/env bash
# python_test.sh WHEEL TEST.py [ARGUMENT...]: a test of the PyTorch package, from the files of its wheel. It needs a Python with
# PyTorch: $PYTHON, or the one that `tools/setup --python` has made. Cases that need another package skip themselves.
set -uo pipefail
wheel=$PWD/$1 test=$PWD/$2
shift 2
arguments=()
for argument; do
    [[ -e $argument ]] && argument=$PWD/$argument
    [[ $argument == "wheel" ]] && argument=$wheel
    arguments+=("$argument")
done
home=$(getent passwd "$(id -u)" | cut -d: -f6)
python=${PYTHON:-$home/.cache/zero-python/bin/python}
needs=(torch)
case ${test##*/} in
style_test.py) needs+=(mypy ruff) ;;
wheel_test.py) needs+=(pip) ;;
esac
if ! "$python" -c 'import importlib.util as u, sys; exit(not all(map(u.find_spec, sys.argv[1:])))' "${needs[@]}" 2>/dev/null; then
    echo "SKIPPED: $python lacks one of ${needs[*]}; run tools/setup --python, and once bazel test --nocache_test_results"
    exit "${ZERO_SET_UP:-0}"
fi
"$python" -m zipfile -e "$wheel" "$TEST_TMPDIR/wheel" && "$python" -m compileall -q "$TEST_TMPDIR/wheel" || exit 1
if grep -q __asan_ "$TEST_TMPDIR/wheel/zero/libzero.so" || grep -q __tsan_ "$TEST_TMPDIR/wheel/zero/libzero.so"; then
    echo "SKIPPED: Python does not load a library with a sanitizer"
    exit 0
fi
export PYTHONPATH=$TEST_TMPDIR/wheel PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HOME=$TEST_TMPDIR
[[ -z ${ZERO_COMMAND-} ]] || export ZERO_COMMAND=$PWD/$ZERO_COMMAND
cd "$TEST_TMPDIR" && "$python" "$test" "${arguments[@]+"${arguments[@]}"}"
