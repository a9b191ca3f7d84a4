#!/usr/bin/env bash
# Embedding and head by blocks of the vocabulary, as a user sees them: one hash over stages and tiers for each number of rows;
# checkpoints do not depend on it; memory follows the block.
source "$(dirname "$0")/lib.sh" "$1"
text >text
on_drive='"device": "nvme", "nvme_path": "swap"'
stages=(0 1 2 3 "3, \"offload_optimizer\": {$on_drive}, \"offload_param\": {$on_drive}")
rows() { printf '%s, "vocabulary_block_rows": %s' "$1" "$2"; }
untied() { "$@" | sed 's/"vocab_size": 256/"vocab_size": 256, "tie_word_embeddings": false/'; }
tied_llama() { llama_config "$@" | sed 's/"vocab_size": 256/"vocab_size": 256, "tie_word_embeddings": true/'; }

# all_equal NAME ROWS RANKS EXTRA CONFIG...
all_equal() {
    local name=$1 rows=$2 ranks=$3 extra=$4 stage expected=""
    shift 4
    for stage in "${stages[@]}"; do
        "$@" "$(rows "$stage" "$rows")" "$extra" >c.json
        expect 0 "$zero" train c.json --ranks "$ranks" --data text --steps 4 --run run --overwrite --quiet
        expected=${expected:-$(weights)}
        [[ -n $expected && $(weights) == "$expected" ]] || fail "$name, stage $stage: $(weights), at stage 0 $expected"
    done
    hashes+=("$expected")
}
micro=', "gradient_accumulation_steps": 2'
hashes=()
all_equal "GPT-2, tied" 100 2 "" config
all_equal "GPT-2, whole" 0 2 "" config
[[ ${hashes[0]} != "${hashes[1]}" ]] || fail "the blocks' sums have the order of the whole one's: the key does nothing"
all_equal "odd sizes, untied, micro-steps" 85 3 "$micro, \"gradient_accumulation_mode\": \"last\"" untied odd_config
all_equal "Llama, untied, recomputed" 255 2 ', "activation_checkpointing": {"interval": 1}' llama_config
all_equal "Llama, tied, micro-steps, evaluated" 64 2 "$micro, \"gradient_accumulation_mode\": \"every\"" tied_llama
in_bf16 all_equal "GPT-2 in bf16, untied" 100 2 ', "bf16": {"enabled": true}' untied config
all_equal "GPT-2 in fp16, a frozen table" 100 2 \
    ', "fp16": {"enabled": true}, "param_groups": [{"match": "wte.weight", "frozen": true}]' untied config

# Any run loads any checkpoint, and goes on as from the other's: the same number of rows ends in the same hash, and what it
# saves is exported to the same files.
for kind in config "untied config"; do
    for from in 0 100; do
        $kind "$(rows 3 "$from")" >c.json
        expect 0 "$zero" train c.json --ranks 2 --data text --steps 2 --save-every 2 --run "from_$from" --quiet
        for to in 0 100; do
            for stage in 1 3; do
                rm -rf again && cp -r "from_$from" again
                $kind "$(rows "$stage" "$to")" >c.json
                expect 0 "$zero" train c.json --ranks 2 --data text --steps 4 --save-every 4 --run again --resume --quiet
                echo "$(weights)" >"to_${from}_${to}_$stage"
                expect 0 "$zero" ckpt verify again/checkpoints
            done
            cmp -s "to_${from}_${to}_1" "to_${from}_${to}_3" || fail "$kind, from $from to $to: stages 1 and 3 differ"
            expect 0 "$zero" ckpt export again/checkpoints/step_00000002 "exported_${from}_$to"
        done
        ! cmp -s "to_${from}_0_3" "to_${from}_100_3" || fail "$kind, from $from: 0 and 100 rows end alike"
        diff -r "exported_${from}_0" "exported_${from}_100" >&2 || fail "$kind, from $from: exports differ"
    done
    # The same weights (the rate is 0), saved without blocks and with them.
    for rows in 0 100; do
        $kind "$(rows 3 "$rows")" | sed 's/"lr": 1e-2/"lr": 0/' >c.json
        expect 0 "$zero" train c.json --ranks 3 --data text --steps 1 --save-every 1 --run "saved_$rows" --quiet
        expect 0 "$zero" ckpt export "saved_$rows/checkpoints" "still_$rows"
        expect 0 "$zero" train c.json --model exported_0_100 --ranks 2 --data text --steps 1 --run run --overwrite --quiet
        weights >"from_directory_$rows"
    done
    cmp from_directory_0 from_directory_100 >&2 || fail "$kind: a Hugging Face directory begins another run with blocks"
    diff -r still_0 still_100 >&2 || fail "$kind: what a run with blocks saves is exported to other bytes"
    rm -rf from_* to_* exported_* still_* saved_* again
done

# Gathered memory follows the block, planned as measured; the plan says so, and what remains.
gathered() { sed -nE 's/.*device gathered units +([^ ].*)/\1/p' out | head -1; }
large() { untied config "$@" | sed 's/"vocab_size": 256/"vocab_size": 40000/'; }
for block in 0 1000; do
    large "$(rows 3 "$block")" ', "data": {"bytes": true}' >c.json
    expect 0 "$zero" train c.json --ranks 2 --data text --steps 1 --run run --overwrite
    read -r planned unit measured measured_unit <<<"$(gathered)"
    [[ -n $planned && "$planned $unit" == "$measured $measured_unit" ]] || fail "gathered units: $(gathered)"
    if ((block)); then
        # five of 1000 x 32 in fp32: blocks in use and ahead, gradients in use and on their way
        [[ $unit == KiB && ${planned%.*} -le 640 ]] || fail "blocks of 1000 rows gather $planned $unit"
    else
        [[ $unit == MiB && ${planned%.*} -ge 9 ]] || fail "a whole vocabulary gathers $planned $unit"
    fi
done
expect 0 "$zero" plan c.json --gpu cpu --ranks 2
says out "embedding and head in units of 1000 rows of the vocabulary"
config "$(rows 3 100)" >c.json
expect 0 "$zero" plan c.json --gpu cpu --ranks 2
says out "they are tied, so the gradients of all of them stay whole during a backward"
expect 0 "$zero" plan c.json --gpu h100-80g --ranks 2
says out "embedding and head in units of 100 rows of the vocabulary"
expect 0 "$zero" sim c.json --ranks 2 --gpu cpu
finish
