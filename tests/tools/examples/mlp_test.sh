#!/usr/bin/env bash
# The example of the README learns, and ends in the same weights at every stage, as threads and as processes.
set -uo pipefail
mlp=$1
failures=0
fail() { failures=$((failures + 1)) && echo "FAILED: $*" >&2; }
flags=(--width 32 --blocks 3 --batch 64 --steps 100)

expected=""
for stage in 0 1 2 3; do
    out=$("$mlp" --ranks 2 --stage "$stage" "${flags[@]}") || fail "stage $stage: exit status $?"
    weights=$(sed -n 's/^weights //p' <<<"$out")
    expected=${expected:-$weights}
    [[ $weights && $weights == "$expected" ]] || fail "stage $stage: weights $weights, at stage 0 $expected"
done
loss=$(sed -nE 's/^step 100  loss //p' <<<"$out")
awk -v loss="$loss" 'BEGIN { exit !(loss != "" && loss < 0.5) }' || fail "loss $loss after 100 steps; guessing gives 0.693"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# By default all jobs of a user share the folder that Open MPI makes in /tmp.
export TMPDIR=$TEST_TMPDIR
weights=$(ASAN_OPTIONS=detect_leaks=0 mpirun --bind-to none --oversubscribe -np 2 "$mlp" "${flags[@]}" | sed -n 's/^weights //p')
[[ $weights == "$expected" ]] || fail "as processes $weights, as threads $expected"
"$mlp" --stage 4 2>/dev/null
[[ $? == 2 ]] || fail "stage 4 was accepted"
"$mlp" --steps 3x 2>/dev/null
[[ $? == 2 ]] || fail "3x steps were accepted"
said=$(mpirun --bind-to none --oversubscribe -np 2 "$mlp" --ranks 2 "${flags[@]}" 2>&1)
[[ $said == *"mpirun has started the ranks already"* ]] || fail "threads under mpirun: $said"
((failures == 0))
