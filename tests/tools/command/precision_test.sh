#!/usr/bin/env bash
# Mixed precision as a user sees it: bf16 ends in one hash on every stage and tier, near fp32's loss; what cannot be computed is
# refused with a sentence.
source "$(dirname "$0")/lib.sh" "$1"
text >text

on_drive='"device": "nvme", "nvme_path": "swap"'
stages=(0 1 2 3 "3, \"offload_optimizer\": {$on_drive}, \"offload_param\": {$on_drive}")

# train NAME STAGE EXTRA STEPS: at a learning rate that does not throw the last steps' losses about.
train() {
    config "$2" "$3" | sed 's/"lr": 1e-2/"lr": 2e-3/' >c.json
    expect 0 "$zero" train c.json --ranks 2 --data text --steps "$4" --run "$1"
}
loss() { tail -n 1 "$1/metrics.jsonl" | sed -E 's/.*"loss": ([^,}]*).*/\1/'; }

bf16=', "bf16": {"enabled": true}'
if grep -qw avx512_bf16 /proc/cpuinfo; then
    train wide 0 "" 200
    wide=$(weights)
    train narrow 0 "$bf16" 200
    says out "compute in bf16"
    [[ $(weights) != "$wide" ]] || fail "bf16 gives the weights of fp32"
    awk "BEGIN {d = $(loss wide) - $(loss narrow); exit !(d * d <= 2e-2 * 2e-2)}" ||
        fail "after 200 steps the loss is $(loss narrow) in bf16, $(loss wide) in fp32"
    expected=""
    for stage in "${stages[@]}"; do
        train run "$stage" "$bf16" 6
        expected=${expected:-$(weights)}
        [[ -n $expected && $(weights) == "$expected" ]] || fail "stage $stage: $(weights), at stage 0 $expected"
    done
else
    config 0 "$bf16" >c.json
    expect 1 "$zero" train c.json --data text --steps 1 --run run
    says err "bf16.enabled"
fi

config 0 ', "fp16": {"enabled": true}' >c.json
expect 1 "$zero" train c.json --data text --steps 1 --run run
says err "fp16.enabled to false"
config 0 "$bf16, \"fp16\": {\"enabled\": true}" >c.json
expect 2 "$zero" train c.json --data text --steps 1 --run run
says err "fp16.enabled: bf16 is enabled too"
finish
