#!/usr/bin/env bash
# zero plan: the tables, what it refuses, and a description of this machine that the planner then reads.
source "$(dirname "$0")/lib.sh" "$1"
config >good.json

expect 0 "$zero" help plan && says out "--micro-batch N"
expect 0 "$zero" plan --models && says out "llama-3-8b"
expect 0 "$zero" plan --literature && says out "ZeRO-Infinity" && says out "llama-3.1-8b" && says out "SlideFormer"
expect 0 "$zero" plan good.json --gpu cpu --ranks 2 && says out "Take stage" && says out "2 ranks on 1 node"
expect 0 "$zero" plan --model 70b --ranks 8 --gpu h100-80g --net 400Gb --nvme 7GB/s --price 2.5
says out "Assumes products in bf16 at 524 TFLOP/s of a peak of 989 TFLOP/s" && says out "a rank sends 360 GB/s inside its node"
says out "short of" && says out "->     3" && says out "per G tokens"
expect 0 "$zero" plan --model 175B --ranks 512 --gpu b200 --micro-batch 1 --seq 1024 --all && says out "512 ranks on 64 nodes"
expect 0 "$zero" plan --model gpt2 --gpu h200 --json && says out '"rows": ['
grep -q '"stage": 3, "offload_optimizer": "nvme", "offload_param": "cpu", "recompute": true' out || fail "a row is missing"
# What a step sends does not depend on the machine: 2 (N - 1) / N bytes of gradients and as many of parameters.
expect 0 "$zero" plan --model gpt2 --gpu h200 --ranks 4 --json
wire() { sed -nE "s/.*\"stage\": $1, \"offload_optimizer\": \"none\".*\"recompute\": false.*\"wire_bytes\": ([0-9]+).*/\1/p" out; }
(($(wire 1) == $(wire 0) && $(wire 3) > $(wire 2) && $(wire 2) >= 4 * 3 / 4 * 124439808)) || fail "bytes on the wire: $(wire 0) $(wire 1) $(wire 2) $(wire 3)"

# The largest: of a shape, and of a model; more memory holds more layers. A search plans many models, and is left out in a short run.
layers() { sed -nE "s/^Largest .* ([0-9,]+) layers, .*/\1/p" out; }
largest() { expect 0 "$zero" plan "$@" --largest --gpu cpu --ranks 1 && says out "Binds     the device's memory: $binds"; }
if ((!short)); then
    expect 0 "$zero" plan --largest --gpu rtx4090 --host desktop --nvme none --seq 512 --host-memory 24GiB
    says out "Binds     host memory: Llama's shape of " && ((8 < $(layers) && $(layers) < 32)) || fail "$(layers) layers with 24 GiB"
    binds="Llama's shape" && largest --seq 128 --host-memory 1GiB && wide=$(layers)
    largest --seq 128 --host-memory 300MiB && (($(layers) < wide && $(layers) > 1)) || fail "$(layers) layers with 300 MiB, $wide with 1 GiB"
    binds="the model block" && largest good.json --host-memory 4MiB --write-config deep.json && says out "32 wide"
    says deep.json "\"n_layer\": $(layers)"
    # Two layers would be two segments of one block each; of more layers the segments are longer.
    config 3 ', "activation_checkpointing": {"number_checkpoints": 2}' >segments.json
    largest segments.json --host-memory 4MiB --write-config segments.deep.json
    says segments.deep.json "\"interval\": $((($(layers) + 1) / 2))"
fi
expect 0 "$zero" plan good.json --largest --gpu cpu --ranks 1 --host-memory 4MiB --json && says out "\"rows\""
expect 2 "$zero" plan --model gpt2 --gpu h200 --host desktops && says err '"desktops" is none of the hosts: did you mean desktop?'
expect 2 "$zero" plan --largest --gpu cpu --host-memory much && says err "--host-memory needs a size"

# The row with the arrow, as a configuration that trains; and of a model that has a name.
text 100 >text
expect 0 "$zero" plan good.json --gpu cpu --ranks 2 --write-config row.json && says out "Written to row.json"
expect 0 "$zero" train row.json --ranks 2 --data text --steps 1 --run row
for model in gpt2 qwen3-0.6b mistral-7b; do
    expect 0 "$zero" plan --model $model --gpu cpu --ranks 1 --seq 64 --host-memory 1TiB --write-config $model.json --json
    expect 0 "$zero" config $model.json
done
says mistral-7b.json '"sliding_window": null' && says qwen3-0.6b.json '"head_dim": 128' && says gpt2.json '"n_positions": 64'
expect 2 "$zero" plan --model gpt2 --gpu cpu --ranks 1 --host-memory 9MiB --write-config none.json && says err "no row fits"
expect 2 "$zero" plan good.json --gpu cpu --ranks 1 --write-config good.json && says err "good.json is there already"
# A model block keeps what is no size: only the layers and the context change. data.context is the samples', not the model's.
llama_config 3 ', "data": {"context": 11}' | sed 's/"vocab_size"/"rope_theta": 5e5, "rms_norm_eps": 1e-5, &/' >llama.json
mkdir directory && echo '{"model_type": "qwen2", "hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 2, "num_hidden_layers": 2,
 "vocab_size": 256, "intermediate_size": 50, "use_sliding_window": true, "sliding_window": 5, "rope_theta": 5e5, "rms_norm_eps": 1e-5,
 "max_position_embeddings": 17, "layer_types": ["full_attention", "sliding_attention"]}' >directory/config.json
for from in "llama.json" "--model directory"; do
    for how in "--seq 8" "--seq 20" "--largest --host-memory 2MiB" ""; do
        rm -f kept.json && expect 0 "$zero" plan $from $how --gpu cpu --ranks 1 --write-config kept.json
        grep -qE '"rope_theta": ?(5e5|500000)' kept.json || fail "$from $how: no rope_theta"
        sed -i 's|"/nvme"|"drive"|' kept.json
        expect 0 "$zero" train kept.json --data text --steps 1
        expect 0 "$zero" config kept.json && grep -qE 'rms_norm_eps +(1e-0?5|0.00001)' out || fail "$from $how: no rms_norm_eps"
        [[ $how != *20 ]] || says kept.json '"max_position_embeddings": 20'
        [[ $how != *8 ]] || says kept.json '"context": 8'
    done
done

# Activations on the drive stay there, with its directory, whether state is there, too.
config 3 ', "gradient_accumulation_steps": 4, "activation_checkpointing": {"nvme_checkpointing": true, "nvme_path": "drive"}' |
    sed 's/"stage": 3/&, "micro_order": "vertical"/; s/"n_layer": 2/"n_layer": 12, "tie_word_embeddings": false/' >leaving.json
for memory in 4MiB 3MiB; do
    rm -f left.json && expect 0 "$zero" plan leaving.json --gpu cpu --ranks 1 --host-memory $memory --write-config left.json
    says out "and recomputation: of" && says left.json '"nvme_checkpointing": true'
    sed -i 's|"/nvme"|"drive"|' left.json
    expect 0 "$zero" train left.json --data text --steps 1 --run left --overwrite
    grep -qE 'nvme +activation checkpoints' out || fail "$memory: no activations on the drive"
done

# A shadow, and updates in the backward that it lets clip: only rows with state on the drive have them, and their price.
config 3 ', "nvme": {"shadow": true}' |
    sed 's|"stage": 3|&, "update_in_backward": true, "offload_optimizer": {"device": "nvme", "nvme_path": "drive"}|' >repeats.json
expect 0 "$zero" plan repeats.json --gpu h100-80g --ranks 8 --nvme 14GB/s,7GB/s
says out "  clipped: " && says out "; that no step is clipped, and beside \`clipped\` that every step is"
[[ $(grep -c "clipped: " out) == $(grep -c " nvme  .*clipped: " out) ]] || fail "a row without a drive repeats steps"

expect 2 "$zero" plan --model gpt2 && says err "--gpu is missing; there are h100-80g"
expect 2 "$zero" plan --gpu cpu && says err "no model: give --model NAME"
expect 2 "$zero" plan --model gpt5 --gpu cpu && says err 'no model has the name "gpt5"'
llama_config | sed 's/"head_dim": 10/"head_dim": 256/' >heads.json
expect 2 "$zero" plan heads.json --gpu h100-80g && says err "heads wider than 128 are computed on the CPU alone"
expect 2 "$zero" plan --model gpt2 --gpu h100 && says err "is none of the devices"
expect 2 "$zero" plan --model gpt2 --gpu h100-80g --net fast && says err '"fast" is none of the links'
expect 2 "$zero" plan --model gpt2 --gpu h100-80g --nvme slow && says err '"slow" is none of the drives'
expect 2 "$zero" plan --model gpt2 --gpu h100-80g --ranks 9 --nodes 2 && says err "do not fill 2 nodes evenly"
# Counts that wrap, or divide by zero, if a plan computes with them first.
for count in "--ranks 70000" "--ranks 4294967297" "--ranks 18446744073709551615" "--nodes 2305843009213693952" "--threads 4294967296" "--seq 4294968320"; do
    expect 2 "$zero" plan --model gpt2 --gpu cpu $count && says err "$count is more than a plan takes: give at most"
done
expect 2 "$zero" plan --model gpt2 --gpu h100-80g --nodes 60000 --net 400Gb && says err "more than the 65536 ranks"
expect 2 "$zero" plan --model gpt2 --gpu h100-80g --price cheap && says err "--price needs a number above 0"
echo '{"devices": {"mine": {"memory": 8e9, "memory_per_s": 1e12, "fp32_flops": 1e13, "host": "desktop", "inside": "pcie4"}}}' >peaks.json
expect 0 "$zero" plan --model gpt2 --hardware peaks.json && says out "Assumed: mine has no measured rate of products in fp32: 50 % of its peak"
expect 0 "$zero" plan --model gpt2 --hardware peaks.json --json && says out '"assumed_achieved": 0.5'
expect 2 "$zero" plan --model gpt2 --gpu cpu --hardware missing.json && says err "missing.json: cannot be opened"
echo '{"devices": {"mine": {"memry": 1}}}' >wrong.json
expect 2 "$zero" plan --model gpt2 --gpu cpu --hardware wrong.json && says err "wrong.json: devices.mine.memry: unknown key: did you mean memory"
echo '{"train_batch_size": 5, "bf16": {"enabled": true}}' >batch.json
expect 2 "$zero" plan batch.json --model gpt2 --gpu a100-80g && says err "train_batch_size: 5 is not a multiple of"
expect 2 "$zero" plan batch.json --model gpt2 --gpu v100-32g --micro-batch 1 && says err "v100-32g does not multiply bf16"
expect 2 "$zero" plan --model gpt2 --gpu cpu --ranks 1 --micro-batch 4096 --seq 1048576 &&
    says err "a micro-batch of 4096 samples of 1048576 tokens is more than 2147483647 tokens"
config 3 ', "zero_optimisation": {}' >typo.json
expect 2 "$zero" plan typo.json --gpu cpu && says err 'did you mean "zero_optimization"'
expect 2 "$zero" plan --measure --model gpt2 && says err "--measure takes the model's shapes from CONFIG.json"
expect 2 "$zero" plan --measure good.json --ranks 1 --threads 1 --out /nowhere/here.json && says err "--out /nowhere/here.json cannot be written"

ranks=$((short ? 1 : 2))
expect 0 "$zero" plan good.json --measure --ranks $ranks --threads 1 --drive . --out here.json
expect 0 "$zero" plan good.json --hardware here.json --ranks $ranks && says out "on 1 node: here" && says out "drive here"
finish
