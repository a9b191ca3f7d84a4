#!/usr/bin/env bash
# Vertical order as a user sees it: zero_optimization.micro_order "vertical" ends in the hash of "horizontal", on every stage and tier,
# reduced in the last micro-step or in every one, with recomputation and without, for both architectures; the activations of all
# micro-batches are in the plan; less comes from the drive; what cannot be is refused with the reason.
source "$(dirname "$0")/lib.sh" "$1"
text >text
micro=', "gradient_accumulation_steps": 3' untied=', "tie_word_embeddings": false'
on_drive='"device": "nvme", "nvme_path": "swap"'
vertical=', "micro_order": "vertical"'
all_nvme=", \"offload_optimizer\": {$on_drive}, \"offload_param\": {$on_drive}"
ways=("" ', "activation_checkpointing": {"interval": 1, "cpu_checkpointing": true}' ', "activation_checkpointing": {"interval": 2}'
    ', "activation_checkpointing": {"nvme_checkpointing": true, "nvme_path": "swap"}')

own_head() { "$@" | sed "s/\"vocab_size\": 256/\"vocab_size\": 256$untied/; s/\"\\(n_layer\\|num_hidden_layers\\)\": 2/\"\\1\": 3/"; }
# train CONFIG STAGE EXTRA: prints the weights' hash
train() {
    own_head "$1" "$2" "$3" >c.json
    expect 0 "$zero" train c.json --ranks 2 --data text --steps 2 --run run --overwrite --quiet
    weights
}

i=0
for make in config llama_config; do
    for mode in last every; do
        extra="$micro, \"gradient_accumulation_mode\": \"$mode\""
        expected=$(train "$make" 0 "$extra")
        for stage in 0 1 2 3 "3$all_nvme"; do
            way=${ways[i++ % 4]}
            got=$(train "$make" "$stage$vertical" "$extra$way")
            [[ -n $expected && $got == "$expected" ]] || fail "$make, $mode, stage $stage, $way: $got, horizontal $expected"
        done
    done
done

# Blocks of the vocabulary, whose head has forwards and backwards of its own.
blocks='3, "vocabulary_block_rows": 100'
expected=$(train llama_config "$blocks" "$micro")
got=$(train llama_config "$blocks$vertical" "$micro")
[[ -n $expected && $got == "$expected" ]] || fail "blocks of the vocabulary: $got, horizontal $expected"

# The parameters of three micro-steps come from the drive once in forward and once in backward, and the plan says so. Gradients, which
# every micro-step reads again, are in memory.
reads() {
    own_head config "3$all_nvme, \"offload_gradients\": {\"device\": \"none\"}$1" "$micro" >c.json
    expect 0 "$zero" train c.json --data text --steps 1 --run run --overwrite
    sed -n 's/.*a step reads \([0-9.]*\) GiB.*/\1/p' out err
}
more=$(reads "") less=$(reads "$vertical")
awk -v a="$less" -v b="$more" 'BEGIN { exit !(a > 0 && a < 0.7 * b) }' || fail "a step reads $less GiB, horizontal $more"

# What is planned is what is measured: three micro-batches wait.
for row in "device activations" "cpu    activation checkpoints" "nvme   activation checkpoints"; do
    own_head config "3$vertical" "$micro${ways[$([[ $row == nvme* ]] && echo 3 || echo 1)]}" >c.json
    expect 0 "$zero" train c.json --data text --steps 1 --run run --overwrite
    read -r planned unit measured measured_unit < <(sed -n "s/.*$row *//p" out)
    [[ -n $planned && "$planned $unit" == "$measured $measured_unit" ]] || fail "$row: planned $planned $unit, measured $measured $measured_unit"
done
says out "3 of 3 blocks are recomputed in the backward, 1 at a time"

# A tied head has an order of sums of its own: one hash at all stages and on all tiers, which is not that of horizontal order.
untied=""
for mode in last every; do
    extra="$micro, \"gradient_accumulation_mode\": \"$mode\"" expected=""
    horizontal=$(train config 0 "$extra")
    for stage in 0 3 "3$all_nvme"; do
        got=$(train config "$stage$vertical" "$extra${ways[i++ % 4]}")
        expected=${expected:-$got}
        [[ -n $got && $got == "$expected" && $got != "$horizontal" ]] || fail "tied, $mode, stage $stage: $got, at stage 0 $expected, horizontal $horizontal"
    done
done

# A word that is no order.
config '3, "micro_order": "diagonal"' >c.json
expect 2 "$zero" train c.json --data text --steps 1 --run run --overwrite
says err "zero_optimization.micro_order"
finish
