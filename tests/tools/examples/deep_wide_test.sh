#!/usr/bin/env bash
# The example in C++ learns, and ends in the same weights at every stage, with the optimizer's state in any place.
set -uo pipefail
deep_wide=$1
failures=0
fail() { failures=$((failures + 1)) && echo "FAILED: $*" >&2; }

expected=""
same() { # FLAGS...
    out=$("$deep_wide" --ranks 2 --steps 100 "$@") || fail "$*: exit status $?"
    weights=$(sed -n 's/^weights //p' <<<"$out")
    expected=${expected:-$weights}
    [[ $weights && $weights == "$expected" ]] || fail "$*: weights $weights, before $expected"
}
for stage in 0 1 2 3; do same --stage $stage; done
for offload in cpu "nvme:$TEST_TMPDIR"; do
    same --stage 3 --offload "$offload"
    same --stage 1 --offload "$offload"
done
awk '$2 == 20 { first = $4 } $2 == 100 { last = $4 } END { exit !(last && last < first - 0.1) }' <<<"$out" ||
    fail "the loss does not fall: $out"

"$deep_wide" --steps 2>/dev/null
[[ $? == 2 ]] || fail "a flag without its value was accepted"
said=$("$deep_wide" --stage 4 2>&1) && fail "stage 4 was accepted"
[[ $said == "deep_wide: zero_optimization.stage"* ]] || fail "stage 4: $said"
((failures == 0))
