#!/usr/bin/env bash
# Vertical order on a GPU, over the stand-ins of tests/cuda: a model with its own head ends in the hash of horizontal order, at several
# stages and tiers, with inputs of blocks that wait on the card, in pinned memory or on a drive; a tied one in one hash of its own. The losses are the
# CPU's. Planned bytes are measured, and what cannot be is refused.
stand_ins=$PWD/tests/cuda
source "$(dirname "$0")/lib.sh" "$1"
text 20 >text
vertical=', "micro_order": "vertical"'
offload=', "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}'
pinned=', "activation_checkpointing": {"interval": 1, "cpu_checkpointing": true}'

# train DEVICE TIED STAGE EXTRA: three micro-steps of each step
train() {
    config "$3" ", \"device\": {\"type\": \"$1\"}, \"gradient_accumulation_steps\": 3, \"gradient_accumulation_mode\": \"every\"$4" |
        sed "s/\"n_positions\": 32/\"n_positions\": 12/; s/\"vocab_size\": 256/&, \"tie_word_embeddings\": $2/" >c.json
    expect "${status:-0}" "$zero" train c.json --data text --steps 2 --run run --overwrite
}
on_gpu() { LD_LIBRARY_PATH=$stand_ins train cuda "$@"; }
losses() { sed -nE 's/.*"loss": ([0-9.e+-]+)[,}].*/\1/p' run/metrics.jsonl; }
same() { # EXPECTED WHAT
    [[ -n $1 && $(weights) == "$1" ]] || fail "$2: $(weights), expected $1"
}

on_gpu false 0 ""
horizontal=$(weights)
for tied in false true; do
    train cpu $tied "0$vertical" ""
    expected=$(losses)
    on_gpu $tied "0$vertical" ""
    hash=$(weights)
    [[ $tied == true ]] || same "$horizontal" "stage 0"
    paste <(echo "$expected") <(losses) |
        awk '{d = $1 - $2; if (NF != 2 || d * d > 1e-8) bad = 1} END {exit bad || NR != 2}' || fail "losses $(losses | tr '\n' ' ')are not the CPU's $(echo "$expected" | tr '\n' ' ')"
    on_gpu $tied "3$offload$vertical" "$pinned"
    same "$hash" "tied $tied, stage 3 in host memory, inputs in pinned memory"
    for row in "device activations" "cpu    batches, losses, checkpoints"; do
        read -r planned unit measured measured_unit < <(sed -n "s/.*$row *//p" out)
        [[ -n $planned && "$planned $unit" == "$measured $measured_unit" ]] || fail "$row: planned $planned $unit, measured $measured $measured_unit"
    done
done
on_gpu false "2$vertical" ', "activation_checkpointing": {"interval": 1}'
same "$horizontal" "stage 2, inputs on the card"
drive='"nvme_checkpointing": true, "nvme_path": "swap"'
on_gpu false "3$vertical" ", \"activation_checkpointing\": {$drive}"
same "$horizontal" "stage 3, inputs on the drive"
status=1 on_gpu false "3$vertical" ", \"activation_checkpointing\": {$drive, \"interval\": 2}"
says err "needs activation_checkpointing.interval 1"
finish
