#!/usr/bin/env bash
# Mixed precision as a user sees it: each type ends in one hash on every stage and tier, near fp32's loss; fp16 goes on from
# overflows; what cannot be computed is refused with a sentence.
source "$(dirname "$0")/lib.sh" "$1"
unset ONEDNN_MAX_CPU_ISA # weights in bf16 must differ from those in fp32 by the type alone
text >text

on_drive='"device": "nvme", "nvme_path": "swap"'
stages=(0 1 2 3 "3, \"offload_optimizer\": {$on_drive}, \"offload_param\": {$on_drive}")

# train NAME STAGE EXTRA STEPS: at a learning rate that does not throw the last steps' losses about.
train() {
    config "$2" "$3" | sed 's/"lr": 1e-2/"lr": 2e-3/' >c.json
    expect 0 "$zero" train c.json --ranks 2 --data text --steps "$4" --run "$1" --overwrite
}
loss() { tail -n 1 "$1/metrics.jsonl" | sed -E 's/.*"loss": ([^,}]*).*/\1/'; }

# near_fp32 TYPE EXTRA
near_fp32() {
    train narrow 0 "$2" 200
    says out "compute in $1"
    [[ $(weights) != "$wide" ]] || fail "$1 gives the weights of fp32"
    awk "BEGIN {d = $(loss wide) - $(loss narrow); exit !(d * d <= 2e-2 * 2e-2)}" ||
        fail "after 200 steps the loss is $(loss narrow) in $1, $(loss wide) in fp32"
}
# one_hash EXTRA
one_hash() {
    local stage expected=""
    for stage in "${stages[@]}"; do
        train run "$stage" "$1" 6
        expected=${expected:-$(weights)}
        [[ -n $expected && $(weights) == "$expected" ]] || fail "$1, stage $stage: $(weights), at stage 0 $expected"
    done
}
skipped() { sed -E 's/.*"skipped": ([01]).*/\1/' "$1/metrics.jsonl" | tr -d '\n'; }

bf16=', "bf16": {"enabled": true}'
train wide 0 "" 200
wide=$(weights)
if has_bf16; then
    near_fp32 bf16 "$bf16"
    one_hash "$bf16"
else
    config 0 "$bf16" >c.json
    expect 1 "$zero" train c.json --data text --steps 1 --run run --overwrite
    says err "bf16.enabled"
fi

fp16=', "fp16": {"enabled": true}'
near_fp32 fp16 "$fp16"
# How high a gradient peaks is the compiler's rounding, too: a step or two may be beyond 2^16 / 65504.
(($(skipped narrow | tr -d 0 | wc -c) <= 4)) || fail "fp16 at a scale of 2^16 skips steps: $(skipped narrow)"
one_hash "$fp16, \"gradient_accumulation_steps\": 2, \"gradient_accumulation_mode\": \"every\""

# Norms that stay fp32: other weights than without, the same everywhere. Matrices do not stay fp32.
norms=', "param_groups": [{"match": "*ln_*", "dtype": "fp32"}]'
train norms 1 "$fp16" 6
narrow=$(weights)
train norms 1 "$fp16$norms" 6
kept=$(weights)
[[ -n $kept && $kept != "$narrow" ]] || fail "norms in fp32 train to $kept, in fp16 to $narrow"
train norms "${stages[4]}" "$fp16$norms" 6
[[ $(weights) == "$kept" ]] || fail "norms in fp32 train to $(weights) on the drive, to $kept at stage 1"
config 1 "$fp16${norms/ln_/attn}" >c.json
expect 1 "$zero" train c.json --data text --steps 1 --run run --overwrite
says err 'parameter "h.0.attn.c_attn.weight": param_groups keep it in fp32'

# A scale of 2^32 is beyond fp16 until it has been halved often enough; hysteresis lets the first overflow pass. Then it trains.
high=', "fp16": {"enabled": true, "initial_scale_power": 32}'
train narrow 0 "$high" 200
says err "skipped on all ranks: gradients of unit"
[[ $(skipped narrow) =~ ^1{5,25}0{5} ]] || fail "steps skipped from a scale of 2^32: $(skipped narrow)"
awk "BEGIN {d = $(loss wide) - $(loss narrow); exit !(d * d <= 0.1 * 0.1)}" ||
    fail "after 200 steps the loss is $(loss narrow) from a scale of 2^32, $(loss wide) in fp32"
skips=$(skipped narrow | tr -d 0)
one_hash "$high"
[[ $(skipped run) == 111111 ]] || fail "6 steps from a scale of 2^32: $(skipped run)"

# Overflows in the middle: the scale doubles every 4 steps and is too large again and again, on all stages alike.
expected=""
for stage in "${stages[@]}"; do
    train run "$stage" ', "fp16": {"enabled": true, "initial_scale_power": '$((33 - ${#skips}))', "loss_scale_window": 4, "hysteresis": 1}' 40
    expected=${expected:-$(weights) $(skipped run)}
    [[ "$(weights) $(skipped run)" == "$expected" ]] || fail "stage $stage: $(weights) $(skipped run), at stage 0 $expected"
done
[[ $(skipped run) =~ 0{4}10+1 ]] || fail "a scale that doubles every 4 steps never overflows: $(skipped run)"

# A scale that stays: too large for any step, or one that fits.
train run 1 ', "fp16": {"enabled": true, "loss_scale": 1099511627776}' 3
[[ $(skipped run) == 111 ]] || fail "a static scale of 2^40: $(skipped run)"
train run 1 ', "fp16": {"enabled": true, "loss_scale": 128}' 3
[[ $(skipped run) == 000 ]] || fail "a static scale of 128: $(skipped run)"
config 0 "$bf16, \"fp16\": {\"enabled\": true}" >c.json
expect 2 "$zero" train c.json --data text --steps 1 --run run
says err "fp16.enabled: bf16 is enabled too"
finish
