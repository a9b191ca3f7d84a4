#!/usr/bin/env bash
# `zero sim`: a summary, a trace, curves, what faults say, and one sentence for what cannot be simulated.
source "$(dirname "$0")/lib.sh" "$1"
cat >sim.json <<'JSON'
{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}
JSON
small=(sim.json --units 4 --params 1e8)
hashes() { sed -n 's/.*; operations \(.*\), schedule \(.*\)/\1 \2/p' out; }

expect 0 "$zero" sim "${small[@]}" --ranks 16 && says out "zero3, 100 M parameters in 4 units, bf16; 16 ranks on h100-80g"
for row in "step  " "computing  " "exposed communication" "peak memory per rank" "wire "; do says out "$row"; done
first=$(hashes)
expect 0 "$zero" sim "${small[@]}" --ranks 16 && [[ $(hashes) == "$first" ]] || fail "the same seed, another schedule"
expect 0 "$zero" sim "${small[@]}" --ranks 16 --faults reorder,delay --seed 2 && [[ ${first% *} == "$(hashes | cut -d' ' -f1)" ]] ||
    fail "other operations"
[[ $(hashes) != "$first" ]] || fail "faults leave the schedule as it is"
expect 0 "$zero" sim "${small[@]}" --ranks 16 --shard 8 && says out "(8 shards x 2 copies)"
expect 0 "$zero" sim sim.json --ranks 8 --model gpt2-xl --steps 1 && says out "50 units"
sed 's/"stage": 3/"stage": 0/' sim.json >copies.json
expect 0 "$zero" sim copies.json --units 1 --params 1e6 --ranks 256 --steps 1 && says out "zero0"
config 2 >model.json
expect 0 "$zero" sim model.json --ranks 4 --gpu cpu --steps 2 && says out "zero2" && says out "in 4 units, fp32"
# A block that is null is one that is not there.
sed 's/{"train/{"comm": null, "data": null, "param_groups": null, "train/' sim.json >nulls.json
expect 0 "$zero" sim nulls.json --units 4 --params 1e8 --ranks 16

# Faults: what they say, and that the run holds.
expect 0 "$zero" sim "${small[@]}" --ranks 16 --faults straggler,slow && says out "% of the others' time"
expect 0 "$zero" sim "${small[@]}" --ranks 16 --faults lost && says out "was lost in step" &&
    says out "15 ranks ended" && says out "has been silent for 60.0 s"
expect 0 "$zero" sim "${small[@]}" --ranks 16 --faults node && says out "the node of rank" && says out "8 ranks ended"
expect 0 "$zero" sim "${small[@]}" --ranks 1 --faults lost && says out "was lost in step"
! grep "ranks ended" out || fail "ranks ended, and there was no other"
sed 's/"stage": 3/"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "nowhere"}/' sim.json >drive.json
expect 0 "$zero" sim drive.json --units 4 --params 1e8 --ranks 16 && says out "drive" && [[ ! -e nowhere ]] || fail "a drive was used"
expect 0 "$zero" sim drive.json --units 4 --params 1e8 --ranks 16 --faults drive && says out "16 ranks ended" &&
    says out "Input/output error"

# With numbers.
config 3 | sed 's/"model".*}}/"steps_per_print": 4}/' >numbers.json
expect 0 "$zero" sim numbers.json --units 3 --params 5000 --ranks 6 --data --steps 3
expect 2 "$zero" sim sim.json --units 3 --params 5000 --ranks 6 --data && says err "fp32 alone"
expect 2 "$zero" sim numbers.json --units 3 --params 5e9 --ranks 6 --data && says err "too much for one process"
expect 0 "$zero" sim --check 20 --seed 5 && says out "20 simulations, 0 failed"

# Files.
expect 0 "$zero" sim "${small[@]}" --ranks 4 --steps 2 --trace trace.json --trace-ranks 2
says trace.json '"name":"GATHER h.1"' && says trace.json '"name":"backward h.0"' && says trace.json '"name":"rank 1"'
! grep -q '"rank 2"' trace.json || fail "more ranks than asked for are traced"
[[ $(head -c 20 trace.json)$(tail -n 1 trace.json) == '{"displayTimeUnit":"'']}' ]] || fail "the trace is not whole"
whole_trace trace.json
expect 0 "$zero" sim "${small[@]}" --ranks 16 --steps 2 --csv curve.csv --svg curve.svg
(($(wc -l <curve.csv) == 5)) || fail "not a heading, and two meshes of 8 and 16 ranks"
says curve.csv "16,hybrid," && says curve.svg "</svg>" && says curve.svg "tokens per second and rank"
(($(grep -c '<polyline' curve.svg) == 2)) || fail "not two curves"

echo '{"devices": {"mine": {"memory": 8e9, "memory_per_s": 1e12, "fp32_flops": 1e13, "bf16_flops": 1e14, "host": "desktop", "inside": "pcie4"}}}' >peaks.json
expect 0 "$zero" sim "${small[@]}" --ranks 2 --net 10Gb --hardware peaks.json && says out "2 ranks on mine" && says err "mine has no measured rate of products in bf16: 50 %"
expect 0 "$zero" help sim && says out "--faults LIST"
expect 2 "$zero" sim && says err "CONFIG.json is missing"
expect 2 "$zero" sim missing.json --units 2 && says err "missing.json"
expect 2 "$zero" sim sim.json && says err "give --units N --params N, --model NAME"
expect 2 "$zero" sim sim.json --model nothing && says err 'no model has the name "nothing"'
expect 2 "$zero" sim sim.json --units 2 --model gpt2 && says err "two models"
expect 2 "$zero" sim sim.json --units 2 --params many && says err '--params needs a number'
expect 2 "$zero" sim "${small[@]}" --faults rain && says err 'there is no fault "rain"'
expect 2 "$zero" sim "${small[@]}" --seq 4294968320 && says err "--seq is at most 16777216"
expect 2 "$zero" sim "${small[@]}" --faults drive && says err "there is no drive to fail"
expect 2 "$zero" sim "${small[@]}" --ranks 16 --shard 5 && says err "--shard 5 does not divide 16 ranks"
expect 2 "$zero" sim "${small[@]}" --gpu abacus && says err "abacus"
expect 2 "$zero" sim "${small[@]}" --svg a.svg --faults lost && says err "go without them"
expect 2 "$zero" sim "${small[@]}" --ranks 4 --svg a.svg && says err "8 or more"
expect 1 "$zero" sim "${small[@]}" --ranks 2 --trace no/such && says err "no/such cannot be written"
finish
