#!/usr/bin/env bash
# fixed_text.sh ZERO: trains on a text that is the same everywhere, and prints a line `hash HOW HASH` for fp32, and bf16 where the
# processor multiplies it, as threads and under mpirun. Two systems on one machine print the same lines: the versions of the compiler,
# oneDNN and Open MPI change no bit. .ci/run and tools/soak compare them with tools/on-debian.
source "$(dirname "$0")/lib.sh" "$1"
export ONEDNN_MAX_CPU_ISA=DEFAULT
text 500 >text
config 3 >fp32.json
config 3 ', "bf16": {"enabled": true}' >bf16.json
types=(fp32)
! has_bf16 || types+=(bf16)
for type in "${types[@]}"; do
    expect 0 "$zero" train "$type.json" --ranks 2 --data text --steps 20 --run "$type" --quiet
    echo "hash $type, threads: $(weights)"
    expect 0 mpirun --bind-to none --oversubscribe -np 2 "$zero" train "$type.json" --data text --steps 20 --run "$type-mpi" --quiet
    echo "hash $type, mpirun: $(weights)"
done
finish
