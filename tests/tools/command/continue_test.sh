#!/usr/bin/env bash
# --continue with a shadow on the drive: a killed run goes on from the shadow on as many ranks as before, where that is later than the
# latest checkpoint, and ends with the weights of one that never stopped. On another number of ranks the checkpoint counts.
source "$(dirname "$0")/lib.sh" "$1"
text 400 >text
shadow() { # DRIVE [SED]
    config 3 ', "nvme": {"shadow": true}, "steps_per_print": 1' | sed 's/"train_micro_batch_size_per_gpu": 2/"train_batch_size": 12/' |
        sed "s|\"stage\": 3|&, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"$work/$1\"}|" | sed "${2-}"
}
train() { "$zero" train "${config:-c.json}" --data text --ranks "${ranks:-2}" "$@"; }
again=(--run run --save-every 1000000 --continue) # and more, below
go_on() { train "${again[@]}" "$@"; }
lines() { steps_of run; }

# killed STEPS: goes on with the run, and kills it in the middle of its steps, once the run has made that many.
killed() {
    "$zero" train c.json --data text --ranks 2 "${again[@]}" --steps 1000000 >out 2>err &
    await has_steps run "$1"
    kill -KILL $! && wait $! 2>/dev/null
    had=$(lines)
}
# What a killed run went on from: in the same place, because its directory and its drive belong together.
keep() { rm -rf kept && mkdir kept && cp -r run drive kept; }
back() { rm -rf run drive && cp -r kept/run kept/drive .; }
begun() { sed -n 's/^resumed *after step \([0-9]*\),.*/\1/p' out; }
# A run that never stopped. Its hash is in `never`.
whole() { # STEPS [OPTION...]
    config=whole.json expect 0 train --run whole --overwrite --steps "$@"
    never=$(weights)
}
from_the_shadow() { # WHAT TOLD
    local from=$(begun)
    says out ', from the shadow'
    ((from >= $2 - 2 && from <= $2 + 2)) || fail "$1: $2 steps were told, it went on from $from"
}
shadow whole >whole.json
shadow drive >c.json

# No checkpoint yet: the shadow alone.
killed 3
says out "begins    with random weights"
told=$had
killed $((had + 2))
from_the_shadow "without a checkpoint" "$told"
to=$((had + 3))
expect 0 go_on --steps $to
from_the_shadow "twice" "$had"
whole $to && [[ $(lines) == "$to" ]] || fail "metrics.jsonl has not a line per step"
[[ -d run/checkpoints/step_$(printf %08d "$to") ]] || fail "no checkpoint of step $to"
expect 0 go_on --steps $to
[[ $(weights) == "$never" ]] || fail "killed twice: other weights than the run that never stopped"
! grep -q "from the shadow" out || fail "the checkpoint has the shadow's step, and counts"

# A checkpoint, and a later step in the shadow.
saved=$to
killed $((saved + 3))
keep
to=$((had + 3))
expect 0 go_on --steps $to
from_the_shadow "later than the checkpoint" "$had"
(($(begun) > saved)) || fail "the shadow is not later than the checkpoint"
hash=$(weights)
whole $to && [[ $hash == "$never" ]] || fail "from the shadow: other weights than the run that never stopped"

# Another number of ranks: the checkpoint, and a sentence. The shadow stays, until its own ranks go on from a later checkpoint.
back
ranks=3 expect 0 go_on --steps $((had + 20))
says out "shadow    step "
says out " of this run stays under $work/drive, because another number of ranks made it: the run goes on from the checkpoint of step $saved"
[[ $(begun) == "$saved" ]] || fail "3 ranks went on from step $(begun), not from the checkpoint"
expect 0 go_on --steps $((had + 22))
[[ $(begun) == $((had + 20)) ]] || fail "2 ranks went on from step $(begun), not from the later checkpoint"
says out "is written over under $work/drive: this run goes on from a checkpoint"
# They made fewer steps than the shadow has: its step is the later one, and counts.
back
ranks=3 expect 0 go_on --steps $((saved + 1))
expect 0 go_on --steps $to
from_the_shadow "later than what 3 ranks made" "$had"
[[ $(weights) == "$never" ]] || fail "after 3 ranks: other weights than the run that never stopped"
sed 's/^{"step": \([0-9]*\),.*/\1/' run/metrics.jsonl | sort -nuc || fail "metrics.jsonl has a step twice, or out of order"
expect 0 "$zero" report run
# Another run on 3 ranks leaves the shadow there; on 2 ranks it may not write over it.
back
ranks=3 expect 0 train --run anew --steps 1 --overwrite
cmp -s drive/zero-shadow-00000-of-00002 kept/drive/zero-shadow-00000-of-00002 || fail "another run on 3 ranks changed the shadow"
[[ -e drive/zero-shadow-00002-of-00003 ]] || fail "no shadow of 3 ranks"
expect 1 train --run other --steps 1
says err "which has not ended: go on with that run (--run DIR --recover), keep it and give this run another nvme_path, or discard it"
# Nor does the directory's next run take it, whose shadow it is not.
ranks=3 expect 0 train --run run --overwrite --steps 2 --save-every 1
expect 1 go_on --steps 4
says err "which has not ended: go on with that run (--run DIR --recover), keep it and give this run another nvme_path, or discard it"
cmp -s drive/zero-shadow-00000-of-00002 kept/drive/zero-shadow-00000-of-00002 || fail "a refused run changed the shadow"
expect 0 go_on --steps 4 --discard-shadow
[[ $(begun) == 2 ]] || fail "--discard-shadow went on from step $(begun) of the new run"
back && rm -r run/checkpoints
ranks=4 expect 0 go_on --steps 2
says out "made it: the run begins anew, because it has no checkpoint"
# It is the same run: its own ranks go on from their later step, and from a later checkpoint of the others.
expect 0 go_on --steps $to
from_the_shadow "begun anew on 4 ranks" "$had"
[[ $(weights) == "$hash" ]] || fail "begun anew on 4 ranks: other weights"
back && rm -r run/checkpoints
ranks=4 expect 0 go_on --steps $((had + 20))
expect 0 go_on --steps $((had + 22))
[[ $(begun) == $((had + 20)) ]] || fail "2 ranks went on from step $(begun), not from the checkpoint of 4"

# Other settings end it before anything is written over; so does the user, who discards the shadow.
back
shadow drive 's/1e-2/1e-3/' >c.json
expect 1 go_on --steps $((had + 3))
says err "the shadow under $work/drive was made with other settings than this configuration: its optimizer.params.lr is 0.01"
cmp -s drive/zero-shadow-00000-of-00002 kept/drive/zero-shadow-00000-of-00002 || fail "a refused run changed the shadow"
shadow drive >c.json
expect 0 go_on --steps $((had + 3)) --discard-shadow
[[ $(begun) == "$saved" ]] || fail "--discard-shadow went on from step $(begun)"

# On another number of ranks other settings begin another run, which does not get the shadow.
back && rm -r run/checkpoints
shadow drive 's/1e-2/1e-3/' >c.json
ranks=4 expect 0 go_on --steps 2
shadow drive >c.json
expect 1 go_on --steps $((had + 3))
says err "which has not ended: go on with that run (--run DIR --recover), keep it and give this run another nvme_path, or discard it"

# Nor is it written over where one rank's drive is missing.
back
rm drive/zero-shadow-00001-of-00002
expect 1 go_on --steps $((had + 3))
says err "later than its latest checkpoint, and the run cannot go on from it"
cmp -s drive/zero-shadow-00000-of-00002 kept/drive/zero-shadow-00000-of-00002 || fail "a refused run changed what is left of the shadow"

# Where its chunks are damaged, each --continue fails, and says how to give the shadow up.
back && rm -r run/checkpoints
for file in drive/zero-shadow-*; do
    head -c $(($(stat -c %s $file) - 65536)) /dev/zero | dd of=$file bs=65536 seek=1 conv=notrunc status=none
done
expect 1 go_on --steps $((had + 3))
says err "came back damaged from"
says err "if the shadow is damaged, --discard-shadow gives it up: the run then goes on from its latest checkpoint, or begins anew"
expect 0 go_on --steps 2 --discard-shadow
says out "begins    with random weights"
expect 0 "$zero" report run

# Frozen weights are in no shadow: those of --model come from there again, though a checkpoint has them, too.
expect 0 "$zero" ckpt export run/checkpoints model
rm -rf run drive whole
freeze='s/"seed"/"param_groups": [{"match": "h.0.*", "frozen": true}], "seed"/'
shadow whole "$freeze" >whole.json && shadow drive "$freeze" >c.json
again+=(--model model)
expect 0 go_on --steps 2
killed 4
to=$((had + 2))
expect 0 go_on --steps $to
from_the_shadow "frozen weights" "$had"
hash=$(weights)
whole $to --model model && [[ $hash == "$never" ]] || fail "frozen weights: other weights than the run that never stopped"
finish
