# For tests of the command: small runs of it, and checks that print what they saw.
# Sourced with the binary as $1.
set -uo pipefail
zero=$PWD/$1
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/zero-XXXXXX")
cd "$work" || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# By default all jobs of a user share the folder that Open MPI makes in /tmp.
export TMPDIR=$work
# Before its first product oneDNN makes code for all kinds of them. For AVX-512 that takes two thirds of a small run; for SSE4.1 nearly
# nothing. train_test and precision_test run with all that the processor has.
export ONEDNN_MAX_CPU_ISA=SSE41
failures=0
sanitized=$(grep -cE '__(asan|tsan)_init' "$zero") # their memory and time are their own
short=$((${ZERO_TEST_DIVISOR:-1} > 1)) # a short run: tests/seeds.h

fail() {
    failures=$((failures + 1))
    echo "FAILED: $*" >&2
    [[ -s out ]] && sed 's/^/  out: /' out >&2
    [[ -s err ]] && sed 's/^/  err: /' err >&2
}

# expect STATUS COMMAND...: runs it; its output is in the files out and err.
expect() {
    local expected=$1 status
    shift
    "$@" >out 2>err
    status=$?
    ((status == expected)) || fail "exit status $status, expected $expected: $*"
}
says() { grep -qF -- "$2" "$1" || fail "$1 lacks \"$2\""; }
has_bf16() { grep -qw avx512_bf16 /proc/cpuinfo; }
in_bf16() { ! has_bf16 || ONEDNN_MAX_CPU_ISA="" "$@"; } # COMMAND...: where the processor multiplies bf16
weights() { sed -n 's/^weights //p' out; }

# For what happens sooner or later, on a machine that is busy with much else, too.
await() { # COMMAND...: until it succeeds
    local end=$((SECONDS + 240))
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS >= end)); then
            fail "not within 240 s: $*"
            return 1
        fi
        sleep 0.05
    done
}
steps_of() { wc -l 2>/dev/null <"$1/metrics.jsonl" || echo 0; } # RUN: the lines of its metrics
has_steps() { (($(steps_of "$1") >= $2)); }                     # RUN STEPS

# config [STAGE [EXTRA]]: a model that trains in a blink; EXTRA: more members, each with a comma before it.
config() {
    cat <<JSON
{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": ${1:-3}, "stage3_param_persistence_threshold": 0},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "gradient_clipping": 1.0, "seed": 3,
 "model": {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32, "vocab_size": 256}${2-}}
JSON
}
# The same with sizes that ranks and vectors do not divide.
odd_config() {
    config "$@" | sed 's/"n_embd": 32, "n_head": 2, "n_positions": 32/"n_embd": 20, "n_head": 4, "n_positions": 17/'
}
# The same in Llama's shape, heads and all.
llama_config() {
    config "$@" | sed 's/"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32/"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "intermediate_size": 50, "max_position_embeddings": 17/'
}
text() { for ((i = 0; i < ${1:-200}; i++)); do echo "line $i: the quick brown fox jumps over the lazy dog"; done; }

finish() {
    cd / && rm -rf "$work"
    ((failures == 0))
    exit
}

# A timeline that viewers show as a whole: slices of a thread do not overlap in part, a flow begins and ends on slices, and it ends after
# the gather that it comes from.
whole_trace() { # FILE
    python3 - "$1" <<'END' || fail "$1 is not what viewers show"
import collections, json, sys

events = json.load(open(sys.argv[1]))["traceEvents"]
rates = {}
threads, flows, counts = collections.defaultdict(list), collections.defaultdict(list), collections.Counter(e["ph"] for e in events)
for e in events:
    if e["ph"] == "X":
        threads[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"], e["name"]))
    if e["ph"] in "sf":
        flows[e["id"]].append(e)
    if e["ph"] == "C":
        assert min(e["args"].values()) >= 0, e
        if e["name"] in ("wire bytes/s", "drive bytes/s"):
            rates[e["pid"], e["name"]] = e
for thread, slices in threads.items():
    slices.sort()
    for one, other in zip(slices, slices[1:]):
        assert one[1] <= other[0] + 1e-6, (thread, one, other)
def at(e, *kinds):
    return next(s for s in threads[e["pid"], e["tid"]] if abs(s[0] - e["ts"]) < 1e-6 and s[2].split()[0] in kinds)
for begin, end in flows.values():
    gather, compute = at(begin, "GATHER"), at(end, "forward", "backward")
    assert gather[2].split(" ", 1)[1] == compute[2].split(" ", 1)[1] and gather[1] <= compute[0] + 1e-6, (gather, compute)
assert flows and counts["C"], "no flow or no counter"
assert rates and all(not any(e["args"].values()) for e in rates.values()), "something moves for ever"
END
}
