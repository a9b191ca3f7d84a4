#!/usr/bin/env bash
# What ends a run from outside: all ranks stop after the same step, save where saving is on, say why, and end with a
# status of their own.
source "$(dirname "$0")/lib.sh" "$1"
library=$OLDPWD/$2
text >text
config >c.json
signals=(INT TERM HUP USR1 XCPU)
status_of() { echo $((128 + $(kill -l "$1"))); }
trains() { await has_steps "$1" 3; }
row() { sed -n "s/^$2:[[:space:]]*//p" "$1"; } # FILE NAME
blocks() { ((0x$(row "$1" SigBlk) >> $(kill -l "$2") - 1 & 1)); } # FILE SIGNAL
# Another thread of the last background process waits for signals, or soon does.
takes_signals() { blocks "/proc/$!/status" USR1; }
# ends STATUS: the last background process, within a minute: what it was at takes longer.
ends() {
    local since=$SECONDS status
    wait "$!"
    status=$?
    ((status == $1)) || fail "exit status $status, expected $1"
    ((SECONDS - since <= 60)) || fail "it took $((SECONDS - since)) s to end"
}

# A shell without job control starts children in the background with SIGINT ignored; the command takes it all the same.
for signal in "${signals[@]}"; do
    "$zero" train c.json --ranks 3 --data text --steps 1000000 --save-every 1000000 --run "$signal" >out 2>err &
    trains "$signal"
    kill -s "$signal" $!
    ends "$(status_of "$signal")"
    says err "SIG$signal while training: stops after this step"
    says out "interrupted after step $(wc -l <"$signal/metrics.jsonl")"
    expect 0 "$zero" ckpt verify "$signal/checkpoints"
done

# One thread takes signals, both those that it waits for, such as SIGINT, and others, such as SIGALRM; it computes nothing.
# No signal has a handler.
"$zero" train c.json --ranks 2 --data text --steps 1000000 --run masks >out 2>err &
trains masks
for signal in INT ALRM; do
    takers=0
    for task in /proc/$!/task/*/status; do
        blocks "$task" $signal || ((++takers))
    done
    ((takers == 1)) || fail "$takers threads take SIG$signal, expected 1"
done
# Bits of SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV and SIGSYS aside: faults of the thread itself.
handled=$((0x$(row "/proc/$!/status" SigCgt) & 0x7fffffff & ~0x400004f8))
((handled == 0)) || fail "signals with a handler: $handled"
kill -s INT $!
ends 130

# nohup's SIGHUP stays ignored.
nohup "$zero" train c.json --data text --steps 1000000 --run nohup >out 2>err &
trains nohup
kill -s HUP $!
await has_steps nohup $(($(steps_of nohup) + 5))
kill -s TERM $!
ends 143
says err "SIGTERM while training"

# While it samples: after a token.
"$zero" train c.json --ranks 2 --data text --steps 1 --sample 1000000000 --run sample >out 2>err &
samples() { [[ $(sed -n '/^sample:/,$p' out | wc -c) -ge 20 ]]; }
await samples
kill -s INT $!
ends 130
says out "interrupted while sampling"

# While it waits for a rank that never comes, and while it fills: nothing is there to be kept.
for rank in 0 1; do
    signal=${signals[rank]}
    WORLD_SIZE=2 RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000)) \
        "$zero" train c.json --data text --steps 2 --run wait >out 2>err &
    await takes_signals
    sleep 0.3
    kill -s "$signal" $!
    ends "$(status_of "$signal")"
    ((rank)) || says err "ends before the first step; nothing is lost" # rank 0 speaks for all
done
config 3 | sed 's/"n_layer": 2, "n_embd": 32, "n_head": 2/"n_layer": 20, "n_embd": 512, "n_head": 2/' >large.json
"$zero" train large.json --data text --steps 1000000 --run large >out 2>err &
await takes_signals
sleep 0.5
kill -s TERM $!
ends 143
grep -qE "ends before the first step|stops after this step" err || fail "it does not say how it ends"

# While it saves to a drive that takes long: the checkpoint before stays whole.
"$zero" train c.json --data text --steps 4 --save-every 2 --run slow --quiet >out 2>err
before=$(cat slow/checkpoints/latest)
SLOW_DRIVE_MS=3000 LD_PRELOAD=$library ASAN_OPTIONS=verify_asan_link_order=0 \
    "$zero" train c.json --data text --steps 1000000 --save-every 3 --run slow --resume >out 2>err &
saves() { compgen -G "slow/checkpoints/*.tmp*" || compgen -G "slow/checkpoints/.step_0*"; }
await saves
kill -s TERM $!
ends 143
says err "SIGTERM while saving a checkpoint: ends without this checkpoint; those before it are whole"
[[ $(cat slow/checkpoints/latest) == "$before" ]] || fail "latest is $(cat slow/checkpoints/latest), was $before"
expect 0 "$zero" ckpt verify slow/checkpoints
expect 0 "$zero" train c.json --data text --steps 6 --save-every 3 --run slow --resume

# A signal that comes early lets the save end.
preload=(env SLOW_DRIVE_MS=300 LD_PRELOAD="$library" ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0)
"${preload[@]}" "$zero" train c.json --data text --steps 1000000 --save-every 3 --run early >out 2>err &
saves_early() { compgen -G "early/checkpoints/.*step_00000003*"; }
await saves_early
kill -s USR1 $!
wait $!
status=$?
((status == 138)) || fail "SIGUSR1 while saving: exit status $status, expected 138"
expect 0 "$zero" ckpt verify early/checkpoints/step_00000003

# An export and an import leave nothing. What a killed export left is taken over, while no other export writes it.
slow=(env SLOW_DRIVE_MS=3000 "${preload[@]:2}")
expect 0 "$zero" ckpt export early/checkpoints/step_00000003 whole
export_slowly() { # SIGNAL
    "${slow[@]}" "$zero" ckpt export early/checkpoints/step_00000003 "${out:-exported}" >out 2>err &
    await test -s "${out:-exported}.partial/model.safetensors"
    kill -s "$1" $!
}
export_slowly TERM
ends 143
says err "zero ckpt: interrupted: nothing of exported is left"
compgen -G "exported*" && fail "an interrupted export left something"
export_slowly KILL
ends 137
mkdir exported.partial/mine
expect 1 "$zero" ckpt export early/checkpoints/step_00000003 exported
says err "exported.partial holds what no export writes: move it away"
rmdir exported.partial/mine || fail "an export removed a directory that no export makes"
: >exported.partial/model-00001-of-00002.safetensors
expect 0 "$zero" ckpt export early/checkpoints/step_00000003 exported
diff -r whole exported || fail "after a killed export: another export"
[[ ! -e exported.partial ]] || fail "exported.partial stays"
out=twice_exported export_slowly STOP
expect 1 "$zero" ckpt export early/checkpoints/step_00000003 twice_exported
says err "twice_exported.partial is another export's: wait for it"
kill -s CONT $!
ends 0
diff -r whole twice_exported || fail "two exports at once: another export"
mkdir mine.partial && : >mine.partial/model.safetensors
expect 1 "$zero" ckpt export early/checkpoints/step_00000003 mine
says err "mine.partial already exists, and is not what an export left" && [[ -e mine.partial/model.safetensors ]] || fail "it is removed"
"${slow[@]}" "$zero" ckpt import whole imported >out 2>err &
await test -s imported/.step_00000000.saving/rank_00000.safetensors
kill -s INT $!
ends 130
says err "zero ckpt: interrupted: nothing is imported"
[[ -z $(ls -A imported) ]] || fail "an interrupted import left $(ls -A imported)"

# One rank's signal stops all; another rank's own comes while they save for it, and is no second one.
port=$((20000 + RANDOM % 10000))
for rank in 1 0; do
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "${preload[@]}" \
        "$zero" train c.json --data text --steps 1000000 --save-every 1000000 --run skew >out.$rank 2>err.$rank &
    pids[rank]=$!
done
trains skew
kill -s TERM "${pids[0]}"
saves_skew() { compgen -G "skew/checkpoints/.step_0*"; }
await saves_skew
kill -s TERM "${pids[1]}"
for rank in 0 1; do
    wait "${pids[rank]}"
    status=$?
    ((status == 143)) || fail "skewed signals: rank $rank has exit status $status, expected 143: $(cat err.$rank)"
done
expect 0 "$zero" ckpt verify skew/checkpoints

# What was asked for cannot be saved: that is a failure.
"$zero" train c.json --data text --steps 1000000 --save-every 1000000 --run unsaved >out 2>err &
trains unsaved
: >unsaved/checkpoints
kill -s INT $!
ends 1
says err "saving at step"

# Nobody reads what it says.
config 3 ', "steps_per_print": 1' >talks.json
mkfifo pipe
exec 3<>pipe
head -c 57344 /dev/zero >&3 # leaves two of a pipe's 16 pages, so that it is soon full
"$zero" train talks.json --data text --steps 1000000 --run blocked >pipe 2>&1 3<&- &
trains blocked
stands() { # RUN
    local had
    had=$(steps_of "$1")
    sleep 0.5
    (($(steps_of "$1") == had))
}
await stands blocked
kill -s INT $!
# More than a second after the first one has been taken, which may be late.
is_gone() { ! kill -s INT $!; }
for ((i = 0; i < (sanitized ? 3 : 50); i++)); do # with the thread sanitizer it ends only when the pipe is closed, below
    sleep 1.2
    is_gone 2>/dev/null && break
done
((!sanitized)) || exec 3<&- # the thread sanitizer writes stdout out before it lets a process end
ends 130
exec 3<&-

# A second signal does not wait for the step, which takes minutes.
config 3 ', "gradient_accumulation_steps": 20000' | sed 's/"n_layer": 2, "n_embd": 32/"n_layer": 8, "n_embd": 128/' >steps.json
"$zero" train steps.json --data text --steps 2 --run second >out 2>err &
await grep -q "^begins" out
sleep 0.5
kill -s INT $!
await grep -q "SIGINT while" err
sleep 1.2
kill -s INT $! 2>/dev/null
ends 130
# Of a terminal, a second Ctrl-C counts, however fast it comes.
mkfifo keys
exec 3<>keys
script -qec "'$zero' train steps.json --data text --steps 2 --run keyboard" /dev/null <keys >out 2>err 3<&- &
await grep -q "^begins" out
sleep 0.5
printf '\003' >&3
await grep -q "SIGINT while" out
printf '\003' >&3
ends 130
exec 3<&-

# `timeout` sends its signal twice, and a run that it ends saves all the same. The steps take some tenths of a second. A second signal
# that the run takes more than a second after the first one ends it at once: never within a second.
config 3 ', "gradient_accumulation_steps": 100' >tenths.json
for signal in TERM INT TERM INT; do
    "$zero" train tenths.json --data text --steps 1000000 --save-every 1000000 --run twice >out 2>err &
    trains twice
    since=${EPOCHREALTIME/./}
    kill -s $signal $!
    await grep -q "SIG$signal while training: stops after this step" err
    kill -s $signal $! 2>/dev/null
    ends "$(status_of $signal)"
    soon=$((${EPOCHREALTIME/./} - since < 1000000))
    ((!soon)) && grep -q "ends at once" err || says out "saved     after step $(steps_of twice)"
    rm -r twice
done

# Data that shrink under it: the state of the last whole step is saved.
text 4000 >shrinks
"$zero" train c.json --ranks 2 --data shrinks --steps 1000000 --save-every 1000000 --run shrink >out 2>err &
trains shrink
: >shrinks
ends 1
says err "it must not change during a run"
expect 0 "$zero" ckpt verify shrink/checkpoints

# Limits on the size of files and on memory: writing fails, memory is not to be had, and the run says so. A sanitizer's own
# memory and files break such limits.
if ((!sanitized)); then
    (ulimit -f 8 && exec "$zero" train c.json --data text --steps 20 --save-every 20 --run small >out 2>err) &
    ends 1
    says err "File too large"
    (ulimit -v 300000 && exec "$zero" train large.json --data text --steps 2 --run memory >out 2>err) &
    ends 1
    [[ -s err ]] || fail "it ends without a word"
fi
finish
