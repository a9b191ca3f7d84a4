#!/usr/bin/env bash
# The standard streams: closed ones, and those that take nothing more.
source "$(dirname "$0")/lib.sh" "$1"
text 20 >text
config >c.json
train() { "$zero" train c.json --data text --steps 2 --save-every 1 "$@"; }
# one_line WORDS: err is one sentence that has WORDS.
one_line() {
    says err "$1"
    [[ $(grep -vc "settings of the run" err) == 1 ]] || fail "said more than once: $1"
}

# A closed stream is /dev/null. Its number goes to no file of the run, so the checkpoints are whole.
expect 0 train --run whole
whole=$(weights)
train --run no_out >&- 2>err || fail "stdout is closed: exit status $?"
train --run no_err >out 2>&- || fail "stderr is closed: exit status $?"
train --run no_in <&- >out 2>err || fail "stdin is closed: exit status $?"
[[ $(weights) == "$whole" ]] || fail "stdin is closed: other weights"
train --run nothing <&- >&- 2>&- || fail "all are closed: exit status $?"
for run in no_out no_err no_in nothing; do
    expect 0 "$zero" ckpt verify $run/checkpoints/step_00000001
    expect 0 "$zero" ckpt verify $run/checkpoints
    expect 0 "$zero" ckpt diff whole/checkpoints $run/checkpoints
    [[ $(grep -vc '^{"step": ' $run/metrics.jsonl) == 0 ]] || fail "$run: metrics.jsonl has other lines"
done
"$zero" ckpt export whole/checkpoints exported >&- 2>&- || fail "export with closed streams: exit status $?"
expect 0 "$zero" ckpt import exported imported

# What stdout does not take is said, once, and makes the status 1. The training goes to its end.
full() { "$@" >/dev/full; }
expect 1 full "$zero" train c.json --data text --steps 3 --run full --quiet
one_line "zero train: the output is incomplete: cannot write to stdout: No space left on device"
[[ $(wc -l <full/metrics.jsonl) == 3 ]] || fail "stopped after $(wc -l <full/metrics.jsonl) steps"
expect 1 full "$zero" train c.json --data text --steps 3 --run full --overwrite
one_line "cannot write to stdout"
[[ $(wc -l <full/metrics.jsonl) == 3 ]] || fail "stopped after $(wc -l <full/metrics.jsonl) steps"
for command in "help" "help train" "--version" "--help" "train --help" "config c.json" "config --help" "ckpt info whole/checkpoints" \
    "ckpt verify whole/checkpoints" "ckpt diff whole/checkpoints whole/checkpoints/step_00000001" "sample whole/checkpoints --tokens 8" \
    "plan --models" "sim c.json --ranks 2 --steps 1" "report whole"; do
    # shellcheck disable=SC2086
    full "$zero" $command 2>err
    status=$?
    # Another reason (status 2) would hide that nothing was written.
    ((status == 1)) || fail "zero $command >/dev/full: exit status $status"
    one_line "cannot write to stdout"
done

# A pipe that nobody reads any more.
expect 1 bash -c 'set -o pipefail; "$0" train c.json --data text --steps 3 --run pipe | true' "$zero"
says err "cannot write to stdout: Broken pipe"
[[ $(wc -l <pipe/metrics.jsonl) == 3 ]] || fail "stopped after $(wc -l <pipe/metrics.jsonl) steps"
mkfifo unread && exec 3<>unread 4>unread 3>&- # no reader is left
expect 1 bash -c '"$@" >&4' - "$zero" plan c.json --ranks 2 --gpu cpu --all --write-config row.json
one_line "zero plan: the output is incomplete: cannot write to stdout: Broken pipe"
[[ -s row.json ]] || fail "a closed pipe keeps zero plan from writing its file"
exec 4>&-

# A limit on the size of files ends no command in the middle of its work: the write fails.
if ((!sanitized)); then
    expect 1 bash -c 'ulimit -f 8 && exec "$@"' - "$zero" ckpt export whole/checkpoints limited
    says err "File too large" && [[ ! -e limited.partial ]] || fail "a failed export left limited.partial"
fi
finish
