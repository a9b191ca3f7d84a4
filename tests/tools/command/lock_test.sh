#!/usr/bin/env bash
# One run at a time in a run's directory: a second one is refused, and changes nothing. A killed one locks nothing.
source "$(dirname "$0")/lib.sh" "$1"
text >text
config >c.json
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export TMPDIR=$work OMPI_MCA_btl_vader_backing_directory=$work
as_ranks() { ASAN_OPTIONS=detect_leaks=0 mpirun --bind-to none --oversubscribe -np 2 "$@"; }
train() { "$zero" train c.json --data text "$@"; }
await_steps() { # RUN STEPS
    local end=$((SECONDS + 60))
    until [[ $(wc -l 2>/dev/null <"$1/metrics.jsonl") -ge $2 ]]; do
        ((SECONDS < end)) || fail "$1: no step within 60 s" || return
        sleep 0.05
    done
}

# refused RUN PID COMMAND...: by its holder's name, and the first lines of the metrics are as they were.
refused() {
    local run=$1 pid=$2 before
    shift 2
    before=$(head -n 3 "$run/metrics.jsonl")
    expect 1 "$@"
    says err "another run is at work in $run (process $pid on host $(hostname) holds $run/lock)"
    [[ $(grep -c 'another run is at work' err) == 1 ]] || fail "said more than once"
    [[ -n $before && $(head -n 3 "$run/metrics.jsonl") == "$before" ]] || fail "metrics.jsonl was replaced"
}

"$zero" train c.json --data text --steps 1000000 --ranks 2 --run run --save-every 3 >first.out 2>first.err &
pid=$!
await_steps run 4
refused run $pid train --steps 3 --run run
refused run $pid train --steps 3 --ranks 2 --run run
refused run $pid train --steps 9 --run run --resume
refused run $pid as_ranks "$zero" train c.json --data text --steps 3 --run run
expect 0 train --steps 3 --run other --save-every 3 # another directory is free
expect 0 "$zero" ckpt export other/checkpoints exported
refused run $pid "$zero" ckpt import exported run/checkpoints
expect 0 "$zero" ckpt import exported other/checkpoints/
kill -0 $pid || fail "the first run has ended"
kill -KILL $pid
wait $pid 2>/dev/null
[[ -s run/lock ]] || fail "a killed run leaves its lock's file"
expect 0 train --steps $(($(tail -n 1 run/metrics.jsonl | sed 's/{"step": \([0-9]*\),.*/\1/') + 5)) --run run --resume
expect 0 train --steps 2 --run run

# Two that begin in a new directory at the same time: at most one trains, and the other says so or comes after it.
for i in 1 2; do train --steps 200 --run both >both.$i.out 2>both.$i.err & done
wait -n; first=$?
wait -n; second=$?
((first + second <= 1)) || fail "both ended with $first and $second"
cat both.?.err >err
((first + second == 0)) || says err "another run is at work in both"
[[ $(wc -l <both/metrics.jsonl) == 200 ]] || fail "both: $(wc -l <both/metrics.jsonl) lines"

# A link in the lock's place is not written through.
mkdir linked && echo precious >treasure && ln -s ../treasure linked/lock
expect 1 train --steps 2 --run linked
says err "linked/lock"
[[ $(cat treasure) == precious && ! -e linked/metrics.jsonl ]] || fail "a link in the lock's place was followed"
finish
