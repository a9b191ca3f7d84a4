#!/usr/bin/env bash
# The tensor parallel example has the losses and norms of the training that is not cut, and ends in the same weights at every stage.
set -uo pipefail
tensor_parallel=$1
failures=0
fail() { failures=$((failures + 1)) && echo "FAILED: $*" >&2; }

"$tensor_parallel" --ranks 2 --tensor 1 --stage 1 >"$TEST_TMPDIR/whole" || fail "not cut: exit status $?"
for tensor in 2 4; do
    expected=""
    for stage in 0 1 2 3; do
        "$tensor_parallel" --ranks $((2 * tensor)) --tensor $tensor --stage $stage >"$TEST_TMPDIR/cut" ||
            fail "$tensor model ranks, stage $stage: exit status $?"
        weights=$(sed -n 's/^weights //p' "$TEST_TMPDIR/cut")
        expected=${expected:-$weights}
        [[ $weights && $weights == "$expected" ]] || fail "stage $stage: weights $weights, at stage 0 $expected"
    done
    paste "$TEST_TMPDIR/whole" "$TEST_TMPDIR/cut" | awk '
        $1 == "step" { steps++; if (($4 - $10) ^ 2 > 1e-6 || ($6 - $12) ^ 2 > 1e-6) { print; wrong++ } }
        END { exit !(steps == 20 && !wrong) }' || fail "$tensor model ranks: other losses or norms than those of one"
done
awk '$2 == 1 { first = $4 } $2 == 20 { last = $4 } END { exit !(last && last < first) }' "$TEST_TMPDIR/whole" ||
    fail "the loss does not fall"

"$tensor_parallel" --ranks 3 --tensor 2 2>/dev/null
[[ $? == 2 ]] || fail "--ranks 3 --tensor 2 was accepted"
((failures == 0))
