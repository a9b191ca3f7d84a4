#!/usr/bin/env bash
# One run at a time in a run's directory: a second one is refused, and changes nothing. A killed one locks nothing.
library=$PWD/$2
source "$(dirname "$0")/lib.sh" "$1"
text >text
config >c.json
as_ranks() { ASAN_OPTIONS=detect_leaks=0 mpirun --bind-to none --oversubscribe -np 2 "$@"; }
train() { "$zero" train c.json --data text "$@"; }

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
await has_steps run 4
refused run $pid train --steps 3 --run run --overwrite
refused run $pid train --steps 3 --ranks 2 --run run --overwrite
refused run $pid train --steps 9 --run run --resume
refused run $pid as_ranks "$zero" train c.json --data text --steps 3 --run run --overwrite
expect 0 train --steps 3 --run other --save-every 3 # another directory is free
expect 0 "$zero" ckpt export other/checkpoints exported
refused run $pid "$zero" ckpt import exported run/checkpoints
inside() { (cd run && "$zero" ckpt import ../exported "$1"); }
for name in checkpoints checkpoints/ ./checkpoints; do
    expect 1 inside $name
    says err "zero ckpt: another run is at work in . (process $pid on host"
done
expect 0 "$zero" ckpt import exported third/checkpoints/
kill -0 $pid || fail "the first run has ended"
kill -KILL $pid
wait $pid 2>/dev/null
[[ -s run/lock ]] || fail "a killed run leaves its lock's file"
expect 0 train --steps $(($(tail -n 1 run/metrics.jsonl | sed 's/{"step": \([0-9]*\),.*/\1/') + 5)) --run run --resume
expect 0 train --steps 2 --run run --overwrite

# Two that begin in a new directory at the same time: one trains, and the other says that it is at work or, where it came late, that it was there.
train --steps 200 --run both >both.1.out 2>both.1.err & one=$!
train --steps 200 --run both >both.2.out 2>both.2.err & other=$!
wait $one; first=$?
wait $other; second=$?
((first + second == 1)) || fail "both ended with $first and $second"
cat both.?.err >err
grep -qE "another run is at work in both|both holds an earlier run" err || fail "the second one said: $(cat err)"
[[ $(wc -l <both/metrics.jsonl) == 200 ]] || fail "both: $(wc -l <both/metrics.jsonl) lines"

ends_at_sigterm() { # PROCESS [STATUS]
    kill -TERM "$1"
    wait "$1"
    local status=$?
    ((status == ${2-143})) || fail "exit status $status, expected ${2-143}"
}

# The directory is moved away, and another run begins under its name: the first goes on, and saves nothing there.
"$zero" train c.json --data text --steps 1000000 --ranks 2 --run moved --save-every 10 >first.out 2>first.err &
pid=$!
await has_steps moved 25
mv moved away
expect 0 train --steps 40 --run moved --overwrite --save-every 20
await grep -qE "saving at step [0-9]+: the run's directory was replaced while it ran: moved/lock" first.err
lines=$(wc -l <away/metrics.jsonl)
await has_steps away $((lines + 10))
# Moved back it is the run's own again.
mv moved second && mv away moved
latest=$(cat moved/checkpoints/latest)
await eval '[[ $(cat moved/checkpoints/latest) != "$latest" ]]'
ends_at_sigterm $pid
[[ $(ls second/checkpoints) == $'latest\nstep_00000020\nstep_00000040' ]] || fail "mixed: $(ls second/checkpoints)"
expect 0 "$zero" ckpt verify moved/checkpoints

# The lock's file alone is deleted, and no other run has come: the next save makes it again.
"$zero" train c.json --data text --steps 1000000 --run healed --save-every 5 >first.out 2>first.err &
pid=$!
await has_steps healed 4
rm healed/lock
await test -s healed/lock
refused healed $pid train --steps 3 --run healed --overwrite
grep -F replaced first.err && fail "no save is to fail"
# Another run has come.
echo "process 1 on host elsewhere" >healed/another
mv healed/another healed/lock
await grep -qF "the run's directory was replaced while it ran: healed/lock" first.err
ends_at_sigterm $pid 1 # what was asked for cannot be saved

# Replaced between opening and locking.
mkdir late && touch late/lock
strange() { STRANGE_LOCKS=$1 LD_PRELOAD=$library ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0 exec "${@:2}"; }
strange late/lock "$zero" train c.json --data text --steps 1000000 --run late >first.out 2>first.err &
pid=$!
await has_steps late 4
refused late $pid train --steps 3 --run late --overwrite
ends_at_sigterm $pid

# Another run begins and ends in a new directory after this one saw that it is not there.
strange stop "$zero" train c.json --data text --steps 3 --run meanwhile >first.out 2>first.err &
pid=$!
await grep -q '^State:.T' /proc/$pid/status
expect 0 train --steps 5 --run meanwhile
kill -CONT $pid
wait $pid && fail "it began over the other run"
says first.err "meanwhile holds an earlier run, which saved no checkpoint"
[[ $(wc -l <meanwhile/metrics.jsonl) == 5 ]] || fail "meanwhile: $(wc -l <meanwhile/metrics.jsonl) lines"

# A file system without locks: a warning by the command that it is.
without_locks() { (strange none "$zero" "$@"); }
expect 0 without_locks train c.json --data text --steps 2 --run without --save-every 2
says err "zero train: cannot lock without/lock: No locks available"
expect 0 without_locks train c.json --data text --steps 4 --run without --save-every 2 --resume
expect 0 without_locks train c.json --data text --steps 4 --run without --save-every 2 --resume 2 # step 4 again, without an exchange
expect 0 "$zero" ckpt verify without/checkpoints
[[ $(ls -A without/checkpoints) == $'latest\nstep_00000002\nstep_00000004' ]] || fail "left: $(ls -A without/checkpoints)"
rm -r without/checkpoints
expect 0 without_locks ckpt import exported without/checkpoints
says err "zero ckpt: cannot lock without/lock: No locks available"

# A file system that renames no directories is found before the first step, if anything is to be saved.
without_names() { (strange names "$zero" "$@"); }
expect 1 without_names train c.json --data text --steps 2 --run nameless --save-every 2
says err "no checkpoint can be saved: cannot rename to nameless/checkpoints/.step_trial: Operation not supported"
[[ $(grep -c . err) == 1 && ! -e nameless/checkpoints && ! -s nameless/metrics.jsonl ]] || fail "$(cat err; ls nameless)"
expect 0 without_names train c.json --data text --steps 2 --run nameless --overwrite

# A file in the place of the lock or the identity that no run made is neither written nor replaced.
echo precious >treasure
foreign() { # NAME WORDS COMMAND...: the command makes the file $at
    local name=$1 words=$2 before
    shift 2
    rm -rf foreign && mkdir foreign
    at=foreign/$name
    "$@"
    before=$(ls -li "$at")
    expect 1 timeout 120 "$zero" train c.json --data text --steps 2 --run foreign --overwrite
    says err "$at $words"
    says err "or name another --run DIR"
    [[ $(grep -c . err) == 1 ]] || fail "said more than once"
    [[ $(cat treasure) == precious && ! -e foreign/metrics.jsonl ]] || fail "$name: written through"
    [[ $(ls -li "$at") == "$before" ]] || fail "$name: $before became $(ls -li "$at")"
    [[ ! -f $at || $(cat $at) == precious* ]] || fail "$name: holds $(cat $at)"
}
long() { for ((i = 0; i < 50; i++)); do echo "precious"; done >$at; }
for name in lock identity; do
    foreign $name "is a symbolic link: remove it" eval 'ln -s ../treasure $at'
    foreign $name "has a second name (a hard link): remove it" eval 'ln treasure $at'
    foreign $name "has contents that no run writes there: move it away" eval 'echo precious >$at'
    foreign $name "has contents that no run writes there: move it away" long
    foreign $name "is a directory: move it away" eval 'mkdir $at'
    foreign $name "is not a regular file: remove it" eval 'mkfifo $at'
done
foreign lock "is a symbolic link" eval 'ln -s ../treasure $at'
says err "zero train: cannot lock the run: foreign/lock is a symbolic link: remove it or name another --run DIR"
finish
