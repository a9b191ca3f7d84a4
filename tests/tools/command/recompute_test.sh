#!/usr/bin/env bash
# Recomputation as a user sees it: any of its keys ends in the hash of the run without, on every stage, in fp32 and bf16, for both
# architectures; activations shrink; what is kept can be of the cpu tier, and is in its budget.
source "$(dirname "$0")/lib.sh" "$1"
text >text
on_drive='"device": "nvme", "nvme_path": "swap"'
stages=(0 1 2 3 "3, \"offload_param\": {$on_drive}")
ways=('"activation_checkpointing": {"interval": 1}' '"activation_checkpointing": {"interval": 2, "cpu_checkpointing": true}'
    '"activation_checkpointing": {"number_checkpoints": 2}' '"activation_checkpointing": {"interval": 2, "nvme_checkpointing": true, "nvme_path": "swap"}')

deeper() { "$@" | sed 's/\("n_layer"\|"num_hidden_layers"\): 2/\1: 5/'; }
# all_equal NAME CONFIG EXTRA RANKS; in a short run, each stage with one way, and each way at one stage.
all_equal() {
    local name=$1 make=$2 extra=$3 ranks=$4 stage way expected="" turn=0 at
    for stage in "${stages[@]}"; do
        at=$((turn--))
        for way in "" "${ways[@]}"; do
            ((short && at++ % 5)) && continue
            deeper "$make" "$stage" "$extra${way:+, $way}" >c.json
            expect 0 "$zero" train c.json --ranks "$ranks" --data text --steps 3 --run run --overwrite --quiet
            expected=${expected:-$(weights)}
            [[ -n $expected && $(weights) == "$expected" ]] || fail "$name, stage $stage, $way: $(weights), without $expected"
        done
    done
}
micro=', "gradient_accumulation_steps": 2'
all_equal "GPT-2" config "" 2
all_equal "Llama, micro-steps" llama_config "$micro, \"gradient_accumulation_mode\": \"every\"" 2
in_bf16 all_equal "GPT-2 in bf16" config ', "bf16": {"enabled": true}' 2

# Hugging Face's word; what is planned is what is measured.
deeper config | sed 's/"n_layer"/"gradient_checkpointing": true, "n_layer"/' >c.json
expect 0 "$zero" train c.json --data text --steps 1 --run run --overwrite
short=$(sed -n 's/.*device activations *//p' out)
deeper config >c.json
expect 0 "$zero" train c.json --data text --steps 1 --run run --overwrite
long=$(sed -n 's/.*device activations *//p' out)
[[ -n $short && -n $long && $short != "$long" ]] || fail "activations take $short with gradient_checkpointing, $long without"
for row in "$short" "$long"; do
    read -r planned unit measured measured_unit <<<"$row"
    [[ "$planned $unit" == "$measured $measured_unit" ]] || fail "planned and measured: $row"
done

# What it comes to is said.
deeper config 3 ', "activation_checkpointing": {"interval": 2}' >c.json
expect 0 "$zero" train c.json --data text --steps 1 --run run --overwrite
says out "4 of 5 blocks are recomputed in the backward, 2 at a time"
deeper config 3 ', "activation_checkpointing": {"interval": 9}' >c.json
expect 0 "$zero" train c.json --data text --steps 1 --run run --overwrite
says out "no block is recomputed: a segment of 9 has all 5 blocks"

# 5 checkpoints of 64 rows of 32 floats, 8 KiB each.
deeper config 3 ', "trace": {"steps": 0}, "memory": {"cpu": 40960}, "activation_checkpointing": {"cpu_checkpointing": true}' >c.json
expect 1 "$zero" train c.json --data text --steps 1 --run run --overwrite
says err "memory.cpu: the plan needs 42560 bytes per rank, 1600 more than the budget"
deeper config 3 ', "trace": {"steps": 0}, "memory": {"cpu": 42560}, "activation_checkpointing": {"cpu_checkpointing": true}' >c.json
expect 0 "$zero" train c.json --data text --steps 1 --run run --overwrite
says out "cpu    activation checkpoints"
finish
