#!/usr/bin/env bash
# A second run in a directory: it is not overwritten by accident, it goes on as one is told, and it says what moves.
source "$(dirname "$0")/lib.sh" "$1"
text >text
config 3 >c.json
train() { "$zero" train "${config:-c.json}" --data text --ranks 2 "$@"; }
id() { sed -n 's/^id \(.\{12\}\).*/\1/p' "$1/identity"; } # RUN: the beginning of it, as messages show it
kept() { cmp -s "$1/metrics.jsonl" before && [[ $(cat "$1/checkpoints/latest" 2>/dev/null) == "$latest" ]] || fail "$1 was overwritten"; }
keep() { cp "$1/metrics.jsonl" before && latest=$(cat "$1/checkpoints/latest" 2>/dev/null); }

# An earlier run stays, with checkpoints and without.
expect 0 train --steps 2 --run plain && keep plain
expect 1 train --steps 2 --run plain && kept plain
says err "plain holds an earlier run, which saved no checkpoint: begin anew over it by --overwrite, or name another --run DIR"
[[ $(grep -c . err) == 1 ]] || fail "said more than once"
expect 0 train --steps 3 --run plain --overwrite
[[ $(wc -l <plain/metrics.jsonl) == 3 ]] || fail "--overwrite left $(wc -l <plain/metrics.jsonl) lines"
expect 0 train --steps 4 --run saved --save-every 2 && keep saved
says out "saved     after step 2: saved/checkpoints" && says out "saved     after step 4: saved/checkpoints"
[[ $(grep -c '^saved' out) == 2 ]] || fail "two saves were announced $(grep -c '^saved' out) times"
expect 1 train --steps 2 --run saved && kept saved && says err "saved holds an earlier run: go on with it by --resume, begin anew"
ASAN_OPTIONS=detect_leaks=0 expect 1 mpirun --bind-to none --oversubscribe -np 2 "$zero" train c.json --data text --steps 2 --run saved
says err "saved holds an earlier run" && kept saved
expect 2 train --steps 2 --run saved --overwrite --resume && says err "drop one" && kept saved
# Imported weights are an earlier run, too: without --resume they would be forgotten.
expect 0 "$zero" ckpt export saved/checkpoints exported
expect 0 "$zero" ckpt import exported imported/checkpoints
expect 1 train --steps 2 --run imported && says err "go on with it by --resume"
expect 0 train --steps 2 --run imported --resume
# A run that never began its first step is none.
mkdir empty && : >empty/metrics.jsonl
expect 0 train --steps 1 --run empty
says out "begins    with random weights, of seed 3"

# --continue begins where there is no checkpoint, and not where the latest cannot be told. All ranks do as rank 0 finds.
cp -r saved torn && rm torn/checkpoints/latest && keep torn
expect 1 train --steps 4 --run torn --save-every 2 --continue && kept torn
says err "torn/checkpoints has no latest; name a step's directory in it, such as step_00000004; --resume STEP goes on from the checkpoint of a step"
[[ $(grep -c . err) == 1 ]] || fail "said more than once"
ASAN_OPTIONS=detect_leaks=0 expect 1 mpirun --bind-to none --oversubscribe -np 2 "$zero" train c.json --data text --steps 4 --run torn --save-every 2 --continue
says err "torn/checkpoints has no latest" && kept torn
# One checkpoint alone is what a kill in the first save leaves, before that writes `latest`.
expect 0 train --steps 4 --run whole && whole=$(weights)
expect 0 train --steps 2 --run first --save-every 2 && rm first/checkpoints/latest
expect 0 "$zero" ckpt verify first/checkpoints
expect 0 train --steps 4 --run first --save-every 2 --continue
says out "resumed   after step 2,"
[[ $(weights) == "$whole" ]] || fail "after a kill in the first save: other weights"
mkdir hidden && ln -s checkpoints hidden/checkpoints # a name that cannot be followed, as that of a drive which is away
expect 1 train --steps 1 --run hidden --save-every 1 --continue
says err "hidden/checkpoints" && [[ ! -e hidden/metrics.jsonl ]] || fail "began where checkpoints cannot be seen"

# A run began anew over another, and ended before it saved: the other's checkpoint is not its own.
cp -r saved over
expect 0 train --steps 3 --run over --overwrite && keep over
expect 1 train --steps 6 --run over --resume && kept over
says err "the latest checkpoint in over, of step 4, is of run $(id saved), over which run $(id over) began anew, which has saved nothing yet: go on with the former by --resume 4"
cp -r over chosen && expect 0 train --steps 5 --run chosen --resume 4 # which chooses the former, also if it saves nothing
expect 0 train --steps 6 --run chosen --resume
says out "resumed   after step 4,"
expect 0 train --steps 3 --run over --save-every 3 --continue
says err "the checkpoint of step 4 is of run $(id saved), over which this one began anew: this one has none yet, and begins again"
says out "begins    with random weights, of seed 3"
expect 0 train --steps 4 --run over --resume
says out "resumed   after step 3,"
expect 0 train --steps 5 --run over --resume 4
says out "resumed   after step 4,"

# Checkpoints of the run that was begun over are not among those that --keep counts, and stay.
expect 0 train --steps 7 --run counted --save-every 2
expect 0 train --steps 6 --run counted --overwrite --save-every 3 --keep 2
list() { (cd counted/checkpoints && echo step_*); }
[[ $(list) == "step_00000002 step_00000003 step_00000004 step_00000006 step_00000007" ]] || fail "--keep 2 left $(list)"
expect 0 train --steps 7 --run counted --resume --save-every 7 --keep 1
[[ $(list) == "step_00000002 step_00000004 step_00000007" ]] || fail "--keep 1 left $(list)"

# Beyond the end there is nothing to do, which is said.
expect 0 train --steps 4 --run saved --resume
says err "nothing is left to train: the run is at step 4, and --steps is 4; give --steps above that to go on"
expect 0 train --steps 3 --run saved --resume --quiet && says err "the run is at step 4, and --steps is 3"

# A schedule as long as the run moves with it; one of a given length does not.
scheduled() { config 3 ", \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": $1, \"warmup_num_steps\": 2}}"; }
scheduled '"auto"' >auto.json
scheduled 8 >fixed.json
moves="the earlier part was for 4 steps, this one is for 6"
config=auto.json expect 0 train --steps 4 --run auto --save-every 2
config=auto.json expect 0 train --steps 6 --run auto --resume && says err "schedule moves: $moves"
config=auto.json expect 0 train --steps 4 --run auto --resume 2
grep -q moves err && fail "a schedule of the same length moves"
config=fixed.json expect 0 train --steps 4 --run fixed --save-every 4
config=fixed.json expect 0 train --steps 6 --run fixed --resume
grep -q moves err && fail "a schedule of a given length moves"

# Schedulers' signals: the step ends, it is saved, and the status is the signal's.
for signal in TERM USR1 HUP; do
    "$zero" train c.json --data text --steps 1000000 --run $signal --save-every 1000000 >out 2>err &
    pid=$!
    await has_steps $signal 2
    kill -s $signal $pid
    wait $pid
    status=$?
    ((status == 128 + $(kill -l $signal))) || fail "SIG$signal: exit status $status"
    step=$(wc -l <$signal/metrics.jsonl)
    says out "saved     after step $step: $signal/checkpoints"
    [[ -e $signal/checkpoints/$(printf step_%08d "$step")/manifest.json ]] || fail "SIG$signal: step $step is not saved"
done
finish
