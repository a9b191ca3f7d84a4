#!/usr/bin/env bash
# Runs a program on the stand-in CUDA libraries of this folder: with_stand_ins.sh SEEDS PROGRAM ARGUMENT...
# Fewer seeds in a short run: tests/seeds.h.
set -euo pipefail
seeds=$(($1 / ${ZERO_TEST_DIVISOR:-1}))
((seeds)) || seeds=1
shift
export LD_LIBRARY_PATH="$PWD/tests/cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
for ((seed = 1; seed <= seeds; seed++)); do
    FAKE_CUDA_SEED=$seed "$@" || { echo "failed with FAKE_CUDA_SEED=$seed" >&2; exit 1; }
done
