#!/usr/bin/env bash
# The contract as a user checks it: stages 0 to 3, with state and parameters on any tier, end in the same hash on 1 to 4 ranks,
# also with micro-steps, where both modes of accumulation are experiments of their own, and sizes that nothing divides.
source "$(dirname "$0")/lib.sh" "$1"
text >text

on_drive='"device": "nvme", "nvme_path": "swap"'
stages=(0 1 2 3
    '3, "offload_optimizer": {"device": "cpu"}'
    "0, \"offload_optimizer\": {$on_drive}"
    "2, \"offload_optimizer\": {$on_drive, \"buffer_count\": 1}, \"sub_group_size\": 1024"
    "3, \"offload_optimizer\": {$on_drive}, \"offload_param\": {$on_drive}, \"sub_group_size\": 1024")

# all_equal NAME RANKS EXTRA [CONFIG]: one hash over all stages. A shard of the test makes its part of the calls. In a
# short run (tests/seeds.h) it is every third call: all numbers of ranks, modes and models are among these.
each=$((short ? 3 : 1)) shard=${TEST_SHARD_INDEX:-0} shards=${TEST_TOTAL_SHARDS:-1} calls=0
[[ -z ${TEST_SHARD_STATUS_FILE-} ]] || touch "$TEST_SHARD_STATUS_FILE"
all_equal() {
    local call=$((calls++))
    ((call % each == 0 && call / each % shards == shard)) || return 0
    local name=$1 ranks=$2 extra=$3 make=${4:-config} stage expected=""
    for stage in "${stages[@]}"; do
        "$make" "$stage" "$extra" >c.json
        expect 0 "$zero" train c.json --ranks "$ranks" --data text --steps 6 --run run --overwrite --quiet
        [[ -n $(weights) ]] || fail "$name, stage $stage: no hash"
        expected=${expected:-$(weights)}
        [[ $(weights) == "$expected" ]] || fail "$name, stage $stage: $(weights), at stage 0 $expected"
    done
}
for ranks in 1 2 3 4; do all_equal "$ranks ranks" "$ranks" ""; done
for mode in last every; do
    for ranks in 1 2 3 4; do
        all_equal "$ranks ranks, odd sizes, 3 micro-steps, $mode" "$ranks" \
            ", \"gradient_accumulation_steps\": 3, \"gradient_accumulation_mode\": \"$mode\"" odd_config
    done
done
all_equal "2 ranks, Llama" 2 "" llama_config
all_equal "3 ranks, Llama, 2 micro-steps" 3 ', "gradient_accumulation_steps": 2, "gradient_accumulation_mode": "last"' llama_config
in_bf16 all_equal "2 ranks, Llama in bf16" 2 ', "bf16": {"enabled": true}' llama_config

# What a step moves is in metrics.jsonl, with an endurance the drive's life too: of that step or, as a refresh goes on beside
# the host, of the next.
config "1, \"offload_optimizer\": {$on_drive}" ', "nvme": {"endurance_tbw": 600}' >c.json
expect 0 "$zero" train c.json --data text --steps 6 --run run --overwrite --quiet
grep -qE '"drive_read_bytes": [1-9][0-9]*, "drive_write_bytes": [1-9][0-9]*, "drive_write_bytes_per_day": [1-9].*, "drive_life_days": [1-9]' run/metrics.jsonl ||
    fail "the drive's bytes are not in $(cat run/metrics.jsonl)"
[[ -d swap && -z $(ls -A swap) ]] || fail "swap files are left: $(ls -A swap)"
finish
