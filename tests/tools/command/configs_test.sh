#!/usr/bin/env bash
# Every ready-made configuration is planned and simulated as it is: its mesh, its stage's own keys, its schedule.
root=$PWD
source "$(dirname "$0")/lib.sh" "$1"

for file in "$root"/configs/*.json; do
    name=${file##*/}
    model=()
    [[ $name == sim.json ]] && model=(--model gpt2)
    expect 0 "$zero" plan "$file" "${model[@]}" --gpu h100-80g --ranks 4 --nvme 7GB/s && says out "Take stage"
    expect 0 "$zero" sim "$file" "${model[@]}" --gpu h100-80g --ranks 4 --nvme 7GB/s --steps 1
    says out "$([[ $name == *hpz* || $name == *zeropp* ]] && echo hpz || sed -nE 's/.*"stage": ([0-3]).*/zero\1/p' "$file")"
done
# Groups are the configuration's, unless they are asked for.
expect 0 "$zero" sim "$root/configs/zero3-hsdp.json" --ranks 8 --steps 1 && says out "(2 shards x 4 copies)"
expect 0 "$zero" sim "$root/configs/zero3-hpz.json" --ranks 8 --steps 1 && says out "(2 shards x 4 copies)"
expect 0 "$zero" sim "$root/configs/zero3.json" --ranks 8 --steps 1 --shard 4 && says out "(4 shards x 2 copies)"
expect 2 "$zero" sim "$root/configs/zero3-hpz.json" --ranks 8 --steps 1 --shard 4 && says err "contradicts the configuration's zero_hpz_partition_size"

# A model block of Hugging Face's with what it leaves out: 124 M parameters, the head tied.
echo '{"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}' >model.json
expect 0 "$zero" sim "$root/configs/sim.json" --model model.json --ranks 2 --steps 1 && says out "124 M parameters"
# Names are those that the command trains with, and sequences as long.
cat >llama.json <<'JSON'
{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "data": {"context": 64},
 "model": {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256, "max_position_embeddings": 4096},
 "param_groups": [{"match": "model.layers.0.*", "frozen": true}]}
JSON
expect 0 "$zero" plan llama.json --gpu h100-80g --ranks 2 && says out "Take stage"
expect 0 "$zero" sim llama.json --ranks 2 --steps 1 && says out "2 ranks"
finish
