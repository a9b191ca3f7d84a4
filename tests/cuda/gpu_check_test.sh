#!/usr/bin/env bash
# tools/gpu-check on the stand-in: what passes, fails, takes too long and measures is told apart, in all files, and held against the goals.
set -uo pipefail
export PATH="/usr/bin:/bin:$PATH"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failures=0
stand_ins="$PWD/tests/cuda"

expect() { # WHAT FILE PATTERN
    grep -qE -- "$3" "$2" && return
    echo "$1: $2 has no line like $3:" && cat "$2"
    failures=1
}

check() { # STATUS ARGUMENT...: of gpu-check in the folder; its output is in the log
    local expected=$1 status
    shift
    LD_LIBRARY_PATH=$stand_ins FAKE_CUDA_SEED=1 "$dir/gpu-check" "$@" >"$dir/log" 2>&1
    status=$?
    ((status == expected)) && return
    echo "gpu-check $*: exit status $status, expected $expected:" && cat "$dir/log"
    failures=1
}

program() { # NAME TEXT
    printf '#!/bin/sh\n%s\n' "$2" >"$dir/bin/$1" && chmod +x "$dir/bin/$1"
}

mkdir "$dir/bin" "$dir/lib" "$dir/tools" "$dir/python" "$dir/modules"
cp tools/gpu-check configs/hardware.json "$dir/"
cp tests/cuda/norm_test_main "$dir/bin/norm_test"
cp tests/bench/cuda_kernels_bench "$dir/bin/"
echo 0123456789ab >"$dir/commit"

# What passes, fails, takes too long, measures, and cannot run here.
program slow 'sleep 60'
program prints "printf 'a tab\\there, \"quotes\", a back\\\\slash, \\001, \\303\\244'"
cat >"$dir/gpu-check.runs" <<RUNS
# a comment
tests | the norm    | 60 | //tests/cuda:norm_test_main       |
tests | what prints | 60 | //tests:prints                    |
tests | libraries   | 60 | //tests:finds                     |
tests | memcheck, the norm | 60 | memcheck+//tests/cuda:norm_test_main |
speed | a benchmark | 60 | //tests/bench:cuda_kernels_bench  | --elements 5000 --rounds 1 --json {json}
speed | bad "usage" | 60 | //tests/bench:cuda_kernels_bench  | --nonsense
speed | too slow    |  1 | //tests:slow                      |
speed | a peer      | 60 | python:peer.py                    | here
speed | no peer     | 60 | python:none.py                    |
RUNS
cat >"$dir/gpu-check.goals" <<'GOALS'
# a comment
the norm passes       | passed | | ^the norm;^what prints |
all of it passes      | passed | | ^the norm;^bad |
nothing is wrong      | passed | | ^memcheck |
as fast as a copy     | >= 0 | fraction_of_copy | a benchmark | | "copy"
faster than a copy    | >= 1.5 | fraction_of_copy | a benchmark | | "copy"
of what failed        | >= 1 | fraction_of_copy | too slow | a benchmark |
GOALS
program finds 'echo "libraries: $LD_LIBRARY_PATH"'
mkdir -p "$dir/modules/nvidia/cublas/lib" "$dir/toolkit/targets/x/lib" # cuBLAS of both majors may be needed
touch "$dir/modules/nvidia/cublas/lib/libcublasLt.so.12" "$dir/toolkit/targets/x/lib/libnccl.so.2"
printf 'import sys\nprint("the peer", sys.argv[1])\n' >"$dir/python/peer.py"
echo 'print("skipped: no GPU")' >"$dir/python/none.py"
mkdir "$dir/modules/torch" && touch "$dir/modules/torch/__init__.py" # enough to be found
PYTHONPATH="$dir/modules" CUDA_HOME="$dir/toolkit" check 1 --out "$dir/found"
expect "a pass" "$dir/found.md" '^\| the norm \| passed \| [0-9]+ \|$'
expect "cuBLAS 12" "$dir/found.log" '^libraries: .*/modules/nvidia/cublas/lib[:$]'
expect "a benchmark's table" "$dir/found.md" '^    adamw, fp32 .*of a copy$'
expect "a failure" "$dir/found.md" '^\| bad "usage" \| FAILED \(2\) \| [0-9]+ \|$'
expect "too slow" "$dir/found.md" '^\| too slow \| FAILED \(over 1 s\) \| [0-9]+ \|$'
expect "a program of Python's" "$dir/found.json" '"name": "a peer".*"verdict": "passed".*"last_line": "the peer here"'
expect "what is not there" "$dir/found.md" '^\| no peer \| skipped: no GPU \| [0-9]+ \|$'
expect "no sanitizer" "$dir/found.md" '^\| memcheck, the norm \| skipped: there is no compute-sanitizer \| [0-9]+ \|$'
expect "the commit" "$dir/found.json" '"commit": "0123456789ab"'
expect "a benchmark's numbers" "$dir/found.json" '"numbers": \[\{"name": "copy", "elements": 5000'
expect "a quoted name" "$dir/found.json" '"name": "bad \\"usage\\""'
expect "a quoted line" "$dir/found.json" '"last_line": "a tab here, \\"quotes\\", a back\\\\slash, ,"'
expect "the log" "$dir/found.log" '^usage: cuda_kernels_bench'
expect "a goal of tests" "$dir/found.md" '^\| the norm passes \| passed \| 2 of 2 \| yes \|$'
expect "a goal that failed" "$dir/found.md" '^\| all of it passes \| passed \| 1 of 2 \| no \|$'
expect "a goal whose test was skipped" "$dir/found.md" '^\| nothing is wrong \| passed \| 0 of 1 \| not measured \|$'
expect "a goal of numbers" "$dir/found.md" '^\| as fast as a copy \| >= 0 \| 1\.000 \| yes \|$'
expect "a goal that is missed" "$dir/found.md" '^\| faster than a copy \| >= 1\.5 \| 1\.000 \| no \|$'
expect "a goal without numbers" "$dir/found.md" '^\| of what failed \| >= 1 \| - \| not measured \|$'
expect "a goal, for programs" "$dir/found.json" '"goal": "faster than a copy", "bound": ">= 1.5", "measured": "1.000", "held": "no"'

# The goals of the project, on canned numbers: just reached, and just missed. As rows of tests, because results are written after every
# row of the other parts.
cp tools/gpu-check.goals "$dir/"
canned() { # TOKENS OF_PEAK ADAMW STAGE3 OFFLOAD PARAMETERS 65K 16K UNCLIPPED 4K: of ours; PyTorch's and what they are divided by are 100
    cat >"$dir/gpu-check.runs" <<RUNS
tests | GPT-2 124M                | 9 | //:say | {json} '{"step_ms": 100, "tokens_per_s": $1}'
tests | GPT-2 124M, PyTorch       | 9 | //:say | {json} '{"tokens_per_s": 100.0, "of_peak": 0.9}'
tests | GPT-2 124M, context 4k    | 9 | //:say | {json} '{"tokens_per_s": $1}'
tests | GPT-2 124M, context 4k, PyTorch | 9 | //:say | {json} '{"tokens_per_s": 100}'
tests | GPT-2 124M, context 8k    | 9 | //:say | {json} '{"tokens_per_s": $1}'
tests | GPT-2 124M, context 8k, PyTorch | 9 | //:say | {json} '{"tokens_per_s": 100}'
tests | GPT of 1.5B               | 9 | //:say | {json} '{"tokens_per_s": $1, "of_peak": $2, "loss": 1}'
tests | GPT of 1.5B, PyTorch      | 9 | //:say | {json} '{"tokens_per_s": 100, "of_peak": 0.9}'
tests | kernels, bytes per second | 9 | //:say | {json} '[{"name": "adamw, a", "fraction_of_copy": 0.95},' ' {"name": "adamw, b", "fraction_of_copy": $3},' ' {"name": "adam", "fraction_of_copy": 0.1}]'
tests | GPT-2 124M at stage 3     | 9 | //:say | {json} '{"step_ms": $4}'
tests | 1.5B, 32 micro-steps      | 9 | //:say | {json} '{"step_ms": 100}'
tests | 1.5B, the same, state on the cpu | 9 | //:say | {json} '{"step_ms": $5}'
tests | 2.6B in 16 GiB, the rest on the cpu | 9 | //:say | {json} '{"parameters": $6}'
tests | the largest in 16 GiB, PyTorch | 9 | //:say | {json} '{"parameters": 100}'
RUNS
    local each
    for each in "65k tokens, state in host memory:$7" "65k tokens, vertical:$7" "16k tokens, state in host memory:$8" "16k tokens, in the backward, unclipped:$9" \
        "4k tokens, state in host memory:${10}" {65k,16k,4k}" tokens, on the card:100"; do
        echo "tests | 3B, ${each%:*} | 9 | //:say | {json} '{\"tokens_per_s\": ${each##*:}}'" >>"$dir/gpu-check.runs"
    done
}
# shellcheck disable=SC2016
program say 'file=$1; shift; printf "%s\n" "$@" >>"$file"'
canned 110 0.5 0.9 103 110 100 93 60 80 35
check 0 --out "$dir/reached"
canned 109.9 0.499 0.899 103.1 110.1 99.9 92.9 59.9 79.9 34.9
check 0 --out "$dir/missed"
[[ $(grep -cE '^\| .* \| (>=|<=) .* \| yes \|$' "$dir/reached.md") == 14 ]] || { echo "goals that are reached:" && cat "$dir/reached.md" && failures=1; }
[[ $(grep -cE '^\| .* \| (>=|<=) .* \| no \|$' "$dir/missed.md") == 14 ]] || { echo "goals that are missed:" && cat "$dir/missed.md" && failures=1; }

# An unknown peak is not measured.
canned 110 null 0.9 103 110 100 93 60 80 35
check 0 --only 'GPT of 1\.5B' --out "$dir/unknown"
expect "an unknown peak" "$dir/unknown.md" '^\| GPT of 1\.5B, of the GPU.s dense bf16 peak \| >= 0\.5 \| - \| not measured \|$'

# The GPU's peak, by its name.
echo 'speed | peak | 9 | //:tells | {peak}' >"$dir/gpu-check.runs"
# shellcheck disable=SC2016
program tells 'echo "peak of $1."'
peak() { # NAME PEAK
    printf '#!/bin/sh\necho "%s"\n' "$1" >"$dir/tools/nvidia-smi" && chmod +x "$dir/tools/nvidia-smi"
    PATH="$dir/tools:$PATH" check 0 --out "$dir/peak"
    expect "$1" "$dir/peak.json" "\"last_line\": \"peak of $2\\.\""
}
peak "NVIDIA GeForce RTX 4090" 165.2
peak "NVIDIA A100-SXM4-80GB" 312
peak "NVIDIA H100 80GB HBM3" 989.4
peak "NVIDIA H200" 989.4
peak "NVIDIA H100 PCIe" 0
peak "Quadro" 0

# compute-sanitizer, where it is: what it finds fails, and a machine that it refuses skips.
cat >"$dir/gpu-check.runs" <<'RUNS'
tests | clean   | 60 | memcheck+//:clean   |
tests | dirty   | 60 | racecheck+//:dirty  |
tests | refused | 60 | memcheck+//:refused |
RUNS
program clean 'echo fine' && program dirty 'exit 99' && program refused 'echo Device not supported; exit 1'
# shellcheck disable=SC2016
printf '#!/bin/sh\n[ "$1 $3" = "--tool --error-exitcode" ] && while [ "${1#bin/}" = "$1" ]; do shift; done && exec "$@"\n' >"$dir/tools/compute-sanitizer" && chmod +x "$dir/tools/compute-sanitizer"
PATH="$dir/tools:$PATH" check 1 --out "$dir/sanitized"
expect "clean" "$dir/sanitized.md" '^\| clean \| passed '
expect "dirty" "$dir/sanitized.md" '^\| dirty \| FAILED \(99\) '
expect "refused" "$dir/sanitized.md" '^\| refused \| skipped: compute-sanitizer does not support'

# The project's rows of long contexts and outputs that are kept or not, at small sizes; and where the GPU's memory does not hold them.
cp tests/bench/gpt_cuda_bench "$dir/bin/"
small="--layers 1 --width 32 --heads 1 --vocab 40 --batch 1 --context 40 --warm-up 0 --steps 2"
grep -E 'context [48]k|outputs kept' tools/gpu-check.runs | grep -v python: | sed "s/--peak/$small --peak/" >"$dir/gpu-check.runs"
check 0 --out "$dir/long"
loss_of() { grep "\"name\": \"$1\"" "$dir/long.json" | grep -oE '"loss": [0-9.]+'; }
rows=$(grep -c . "$dir/gpu-check.runs")
((rows >= 7)) && [[ $(grep -cE '^\| .* \| passed \| ' "$dir/long.md") == "$rows" ]] || { echo "long contexts:" && cat "$dir/long.md" && failures=1; }
[[ -n $(loss_of "GPT-2 124M, context 8k") && $(loss_of "GPT-2 124M, context 8k") == "$(loss_of "GPT-2 124M, context 4k")" ]] || { echo "the losses:" && cat "$dir/long.json" && failures=1; }
expect "no outputs" "$dir/long.json" '"name": "GPT-2 124M, no outputs kept".*"kept_norm_blocks": 0, "kept_activation_blocks": 0,'
[[ $(loss_of "GPT-2 124M, no outputs kept") == "$(loss_of "GPT-2 124M, context 8k")" ]] || { echo "the losses:" && cat "$dir/long.json" && failures=1; }
expect "outputs that fit" "$dir/long.json" '"name": "GPT-2 124M, context 8k".*"kept_norm_blocks": 1, "kept_activation_blocks": 1,'
expect "a context" "$dir/long.json" '"name": "GPT-2 124M, context 8k".*"attention": "auto".*"context": 40'
FAKE_CUDA_MEMORY=1000000 check 0 --only 'GPT-2 124M, (context 8k|no outputs kept)' --out "$dir/small"
[[ $(grep -cE '^\| .* \| skipped: .*memory' "$dir/small.md") == 2 ]] || { echo "memory that is too small:" && cat "$dir/small.md" && failures=1; }

# The part offload, at small sizes: every row measures, and where the state is changes no loss. At the model's own size a small GPU skips.
cp tests/bench/host_bench "$dir/bin/"
small="--layers 3 --width 32 --heads 1 --vocab 40 --context 20"
sed -E "s/--model llama-3.2-3b --context 4096/$small/; s/--warm-up 1/--warm-up 0/; s/--steps [0-9]+/--steps 2/; s/--batch 16/--batch 3/
    s/--batch 4/--batch 2/; s/--json \{json\}\$/--json {json} --params 50000 --mib 1 --rounds 1/" tools/gpu-check.runs >"$dir/gpu-check.runs"
check 0 offload --out "$dir/offload"
rows=$(grep -c '^offload' tools/gpu-check.runs)
((rows >= 9)) && [[ $(grep -cE '^\| .* \| passed \| ' "$dir/offload.md") == "$rows" ]] || { echo "offload:" && cat "$dir/offload.md" && failures=1; }
loss_of() { grep "\"name\": \"$1\"" "$dir/offload.json" | grep -oE '"loss": [0-9.]+'; }
for size in 65k 16k 4k; do
    [[ -n $(loss_of "3B, $size tokens, on the card") && $(loss_of "3B, $size tokens, on the card") == "$(loss_of "3B, $size tokens, state in host memory")" ]] ||
        { echo "the losses of $size:" && cat "$dir/offload.json" && failures=1; }
done
for name in in out both memory adamw "adamw, while copies run" together; do
    expect "a figure of the host" "$dir/offload.json" "\"name\": \"$name\", \"bytes\": [0-9]+, \"seconds\": [0-9.]+, \"bytes_per_second\": "
done
expect "a goal of the part" "$dir/offload.md" '^\| 3B with its state in host memory, 65k tokens, over the card.s \| >= 0\.93 \| [0-9.]+ '
cp tools/gpu-check.runs "$dir/"
FAKE_CUDA_MEMORY=1000000 check 0 offload --only '3B' --out "$dir/small"
[[ $(grep -cE '^\| .* \| skipped: .*memory' "$dir/small.md") == $((rows - 1)) ]] || { echo "a small GPU:" && cat "$dir/small.md" && failures=1; }
check 2 nothing

# Libraries that the loader does not know, in packages for Python.
echo 'tests | the norm | 60 | //tests/cuda:norm_test_main |' >"$dir/gpu-check.runs"
mkdir -p "$dir/modules/nvidia/driver/lib" && cp tests/cuda/libcuda.so.1 "$dir/modules/nvidia/driver/lib/"
stand_ins='' PYTHONPATH="$dir/modules" check 0 --out "$dir/packages"

# What failed in the run before comes first in the next one.
printf 'speed | first | 60 | //:clean |\nspeed | bad | 60 | //:dirty |\n' >"$dir/gpu-check.runs"
for order in "first bad" "bad first"; do
    check 1 --out "$dir/again"
    [[ $(grep -oE '^\| (first|bad) ' "$dir/again.md" | tr -d '|\n' | xargs) == "$order" ]] || { echo "not $order:" && cat "$dir/again.md" && failures=1; }
done

# Out of time: what was running and what follows are told from what failed; and there are results while it runs.
cat >"$dir/gpu-check.runs" <<'RUNS'
speed | first  | 60 | //:clean |
speed | looks  | 60 | //:looks |
speed | second | 60 | //:slow  |
speed | third  | 60 | //:slow  |
RUNS
program looks "grep -q '\"name\": \"first\"' '$dir/timed.json' && grep -q '^  \\]' '$dir/timed.json' && grep -q first '$dir/timed.md'"
check 1 --out "$dir/timed" --seconds 40
expect "what was there while it ran" "$dir/timed.md" '^\| looks \| passed '
expect "what was running" "$dir/timed.md" '^\| second \| not finished: out of time '
expect "what follows" "$dir/timed.md" '^\| third \| not run: out of time \| [0-9]+ '
check 0 --only 'speed \| (first|looks)' --out "$dir/timed"
[[ $(grep -c passed "$dir/timed.md") == 2 && $(grep -c time "$dir/timed.md") == 0 ]] || { echo "--only:" && cat "$dir/timed.md" && failures=1; }

# The least compression: the best takes seconds, and the files come out the same.
mkdir "$dir/quick"
# shellcheck disable=SC2016
printf '#!/bin/sh\n[ "$1" = -9 ] && shift\nexec /bin/gzip -1 "$@"\n' >"$dir/quick/gzip" && chmod +x "$dir/quick/gzip"
PATH="$dir/quick:$PATH"

# What is carried starts where the C library is 2.34; libstdc++ and libgcc_s are the other machine's.
tools/gpu-check --carry "$dir/pack" tests/cuda/norm_test_main tests/bench/gpt_cuda_bench >"$dir/log" 2>&1 || { cat "$dir/log" && failures=1; }
mkdir "$dir/unpacked" && tar -C "$dir/unpacked" -xzf "$dir/pack/carried.tar.gz"
for file in "$dir"/unpacked/*/*; do objdump -T "$file"; done | grep -oE 'GLIBC_2\.[0-9]+' | sort -Vu | tail -n 1 >"$dir/glibc"
[[ $(printf 'GLIBC_2.34\n' | sort -V - "$dir/glibc" | tail -n 1) == GLIBC_2.34 ]] || { echo "carried:" && cat "$dir/glibc" && failures=1; }
(cd "$dir/unpacked" && find bin lib -type f | sort) >"$dir/carried"
expect "a program" "$dir/carried" '^bin/norm_test$'
expect "a library" "$dir/carried" '^lib/libdnnl\.so'
! grep -E 'stdc\+\+|gcc_s|/libc\.|mpi' "$dir/carried" || failures=1
new=$(gcc -print-file-name=libstdc++.so.6)
if objdump -T "$new" | grep -qE 'GLIBC_2\.3[5-9]'; then
    ! tools/gpu-check --carry "$dir/pack" "$new" >"$dir/log" 2>&1 || { echo "a library that is too new was carried" && failures=1; }
    expect "too new" "$dir/log" 'libstdc\+\+\.so\.6 needs version 2\.3[5-9] of the C library'
fi

# As it is packed.
tar -C "$dir" -czf "$dir/carried.tar.gz" bin lib && rm -r "${dir:?}/bin" "${dir:?}/lib"
check 0 --only first
[[ -s $dir/results.json ]] || { echo "no results where no name was given" && failures=1; }
check 2 --only nothing
check 2 --seconds many
check 2 --nonsense 1
exit "$failures"
