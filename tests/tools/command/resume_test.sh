#!/usr/bin/env bash
# Checkpoints of `zero train`: a run that goes on from one ends as if it had never stopped.
source "$(dirname "$0")/lib.sh" "$1"
text >text
config 3 | sed 's/"train_micro_batch_size_per_gpu": 2/"train_batch_size": 8/' >c.json
config 1 | sed 's/"train_micro_batch_size_per_gpu": 2/"train_batch_size": 8/' >other_stage.json
train() { "$zero" train "${config:-c.json}" --data text --ranks "${ranks:-2}" "$@"; }
steps() { sed 's/^{"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/' "$1/metrics.jsonl"; }

expect 0 train --steps 8 --run whole
whole=$(weights)
steps whole >whole.steps

# In two parts, at the same stage and at another; the metrics are those of one run.
expect 0 train --steps 5 --run parts --save-every 2
[[ $(ls parts/checkpoints) == $'latest\nstep_00000002\nstep_00000004\nstep_00000005' ]] || fail "checkpoints: $(ls parts/checkpoints)"
cp -r parts from_2
cp -r parts from_stage_3
expect 0 train --steps 8 --run parts --resume
says out "resumed   after step 5, at sample 40"
[[ $(weights) == "$whole" ]] || fail "resumed: other weights"
steps parts | diff whole.steps - || fail "resumed: other metrics"
expect 0 train --steps 8 --run from_2 --resume 2
[[ $(weights) == "$whole" ]] || fail "resumed from step 2: other weights"
says out "trained 6 steps, "
steps from_2 | diff whole.steps - || fail "resumed from step 2: other metrics"
config=other_stage.json expect 0 train --steps 8 --run from_stage_3 --resume --save-every 1 --keep 2
[[ $(weights) == "$whole" ]] || fail "resumed at another stage: other weights"
[[ $(ls from_stage_3/checkpoints) == $'latest\nstep_00000007\nstep_00000008' ]] || fail "kept: $(ls from_stage_3/checkpoints)"

# The learning rate, too, is the configuration's.
expect 0 train --steps 6 --run from_2 --resume --set optimizer.params.lr=1e-3
[[ $(tail -n 1 from_2/metrics.jsonl) == *'"lr": 0.001,'* ]] || fail "resumed with another learning rate: $(tail -n 1 from_2/metrics.jsonl)"
says out "resumed   after step 5, at sample 40, with the configured learning rate"

# With skipped steps: the line names the directory, whose number --resume takes.
skips=(--steps 6 --run skipped --set fp16.enabled=true --set fp16.initial_scale_power=20 --set fp16.hysteresis=1)
expect 0 train --save-every 6 "${skips[@]}"
saved=$(sed -n 's/^saved *after step 6: //p' out)
[[ -e $saved/manifest.json && $saved != */step_00000006 ]] || fail "saved after a skipped step: $saved"
expect 0 train --resume $((10#0${saved##*_})) "${skips[@]}"
says out "resumed   after step 6,"

# The same with an optimizer of whole matrices beside another: both states are in the checkpoint.
for stage in 3 1; do
    config $stage ', "param_groups": [{"match": ["*.bias", "*ln_*", "w?e.*"], "optimizer": "AdamW"}]' |
        sed 's/"AdamW", "params": {"lr": 1e-2}/"Muon", "params": {"lr": 1e-2}/' >muon_$stage.json
done
config=muon_3.json expect 0 train --steps 6 --run muon_whole
muon=$(weights)
config=muon_3.json expect 0 train --steps 3 --run muon --save-every 3
config=muon_1.json expect 0 train --steps 6 --run muon --resume
[[ -n $muon && $(weights) == "$muon" ]] || fail "Muon, resumed at another stage: $(weights), at once $muon"
expect 1 train --steps 6 --run muon --resume 3
says err "was saved with optimizer muon+adamw of 2 states, and this run has adamw of 2"

# The same with an optimizer of whole tensors.
for stage in 3 1; do
    config $stage | sed 's/"AdamW", "params"/"Lamb", "params"/' >lamb_$stage.json
done
config=lamb_3.json expect 0 train --steps 6 --run lamb_whole
lamb=$(weights)
config=lamb_3.json expect 0 train --steps 3 --run lamb --save-every 3
config=lamb_1.json expect 0 train --steps 6 --run lamb --resume
[[ -n $lamb && $(weights) == "$lamb" ]] || fail "Lamb, resumed at another stage: $(weights), at once $lamb"

# On other ranks: the same weights to begin with, the next samples, hence nearly the same losses.
ranks=1 expect 0 train --steps 8 --run parts --resume 5
[[ $(steps parts | tail -n 3 | cut -c 1-7) == $(tail -n 3 whole.steps | cut -c 1-7) ]] || fail "on one rank: other losses: $(steps parts)"

# Killed at any time.
for delay in 0 0.01 0.1 0.3; do
    "$zero" train c.json --data text --ranks 2 --steps 100000 --run killed --overwrite --save-every 1 --keep 2 >out 2>err &
    pid=$!
    await test -e killed/checkpoints/latest
    sleep "$delay"
    kill -9 $pid
    wait $pid 2>/dev/null
    done_steps=$(sed 's/step_0*\([0-9]*\) .*/\1/' killed/checkpoints/latest)
    expect 0 train --steps $((done_steps + 3)) --run killed --resume
    resumed=$(weights)
    expect 0 train --steps $((done_steps + 3)) --run again --overwrite
    [[ $(weights) == "$resumed" ]] || fail "killed after $delay s, at step $done_steps: other weights"
    rm -rf killed
done

# Ctrl-C leaves a checkpoint.
"$zero" train c.json --data text --ranks 2 --steps 1000000 --run interrupted --save-every 1000000 >out 2>err &
pid=$!
await has_steps interrupted 3
kill -s INT $pid
wait $pid
[[ -e interrupted/checkpoints/latest ]] || fail "Ctrl-C left no checkpoint"

# What cannot be.
expect 2 train --resume
says err "need --run DIR: the run to go on with"
expect 2 train --keep 3
says err "--save-every N makes them"
expect 1 train --run nowhere --resume
says err "nowhere/checkpoints"
expect 1 train --run whole --resume 77
says err "whole/checkpoints/step_00000077"
config 3 | sed 's/"train_micro_batch_size_per_gpu": 2/"train_batch_size": 8/; s/"n_embd": 32/"n_embd": 64/' >larger.json
config=larger.json expect 1 train --run parts --resume
says err "wte.weight"
[[ $(grep -c . err) == 1 ]] || fail "said more than once"

# A save that fails: the run goes on, says so, and fails at its end.
mkdir -p blocked/checkpoints
for step in 2 3; do ln -s nowhere blocked/checkpoints/.step_0000000$step.saving; done
expect 1 train --steps 3 --run blocked --save-every 2
says err "saving at step 2: "
says err "blocked/checkpoints"
[[ $(wc -l <blocked/metrics.jsonl) == 3 ]] || fail "stopped after $(wc -l <blocked/metrics.jsonl) steps"
# A name that is no UTF-8 costs nothing.
expect 0 "$zero" train c.json --data text --steps 2 --save-every 2 --run $'r\xff' --quiet
expect 0 "$zero" ckpt verify $'r\xff/checkpoints'
expect 0 "$zero" train c.json --data text --steps 4 --run $'r\xff' --resume --quiet
# A run keeps its configuration and options: it goes on with neither, from another directory, and with what is given in their place.
expect 0 "$zero" train c.json --ranks 2 --data text --steps 6 --run never --quiet && hash=$(weights)
expect 0 "$zero" train c.json --ranks 2 --data text --steps 3 --save-every 3 --run "it's" --set seed=3 --quiet
mkdir -p elsewhere && cd elsewhere && mv ../c.json ../gone.json
expect 0 "$zero" train --run "../it's" --resume --steps 6 && says out "configuration of c.json"
grep -q "^versions" out && fail "the same versions are said to differ: $(cat out)"
[[ $(weights) == "$hash" ]] || fail "without a configuration: $(weights), not $hash"
says out "2 ranks" && [[ -d "../it's/checkpoints/step_00000006" ]] || fail "--save-every was forgotten"
expect 2 "$zero" train --run "../it's" --continue --set no.such=1 && says err "unknown key"
cd .. && mv gone.json c.json
expect 2 "$zero" train --run none --resume && says err "CONFIG.json is missing, and the run keeps none yet"
sed -i 's/"oneDNN     [^"]*"/"oneDNN     1.2.3\\u001b[31m"/' "it's/run.json"
expect 0 "$zero" train --run "it's" --resume && says out "versions  the run had another: oneDNN     1.2.3?[31m; from here on its bits may differ"
python3 -c 'import json; r = json.load(open("never/run.json")); del r["kept"]; json.dump(r, open("never/run.json", "w"))'
expect 2 "$zero" train --run never --resume && says err "the run keeps none yet"
finish
