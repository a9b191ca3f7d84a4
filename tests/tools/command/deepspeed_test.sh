#!/usr/bin/env bash
# Files in the shapes of Hugging Face's zero2 and zero3 examples and of DeepSpeed's tutorials run as they are, with --model
# given; those that ask for what is not here are refused with the key and the reason.
files=$(cd "$(dirname "$0")" && pwd)/deepspeed
source "$(dirname "$0")/lib.sh" "$1"
text 200 >text
cat >model.json <<JSON
{"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32, "vocab_size": 256, "n_inner": null,
 "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "use_cache": true}
JSON
rates() { sed -E 's/.*"lr": ([^,]+),.*/\1/' run/metrics.jsonl | tr '\n' ' '; }

# runs FILE WHAT...: it trains 6 steps, with what the log or the metrics must say.
runs() {
    local file=$1
    shift
    expect 0 "$zero" train "$files/runs/$file.json" --model model.json --data text --ranks 2 --steps 6 --run run --overwrite
    for what in "$@"; do says out "$what"; done
    ! grep "unless this program obeys them" out || fail "$file: zero train obeys these keys"
    [[ $(wc -l <run/metrics.jsonl) == 6 ]] || fail "$file: not 6 steps"
    tested+=("$file.json")
}
# rate FILE RATES: of the six steps, worked out from the file.
rate() { [[ $(rates) == "$2 " ]] || fail "$1: the rates are $(rates), not $2"; }

runs hf_zero2 "accepted, and without effect here (zero config --changed says why): " "learning rates by WarmupLR"
rate hf_zero2 "0 0 5e-05 5e-05 5e-05 5e-05" # "auto": up to lr 5e-5 in 1 step, which counts as 2: log 2 / log 2 after one step
runs hf_zero3_cpu "cpu    offloaded parameters" "learning rates by WarmupDecayLR"
rate hf_zero3_cpu "0 0 5e-05 5e-05 3.75e-05 2.5e-05" # total_num_steps is --steps: (6 - i) / (6 - 2) from i = 2 on
runs hf_zero3_nvme "nvme   chunks of optimizer state" "aio.thread_count"
rate hf_zero3_nvme "0 0 2.5e-05 5e-05 3.75e-05 2.5e-05"
runs hf_zero0_old_keys "ZeRO stage 1" "cpu    optimizer state 0"
rate hf_zero0_old_keys "5e-05 5e-05 5e-05 5e-05 5e-05 5e-05"
runs tutorial_cifar "ZeRO stage 2"
rate tutorial_cifar "0 0 0.000100343332 0.000159040418 0.000200686664 0.000232990001" # log 2 to log 5 of log 1000
runs tutorial_one_cycle "2 ranks x 2 x 2 micro-steps"
rate tutorial_one_cycle "0.0001 0.0001 0.0001018 0.0001018 0.0001036 0.0001036" # 500 stairs in 1000 steps
runs tutorial_range_test "sgd"
rate tutorial_range_test "0.0001 0.0001025 0.000105 0.0001075 0.00011 0.0001125"
runs tutorial_zero3_profiled "flops_profiler.enabled"
rate tutorial_zero3_profiled "0 3e-06 9.24059087e-05 0.000144705013 0.000181811817 0.000210594091" # 0.01 + 0.99 log(i + 1) / log 10
# A run that goes on ends as one that never stopped.
train() { expect 0 "$zero" train "$files/runs/hf_zero3_cpu.json" --model model.json --data text --ranks 2 --steps 6 --run whole "$@"; }
train --save-every 3
whole=$(weights)
train --resume 3
[[ -n $whole && $(weights) == "$whole" ]] || fail "after a resume the weights are $(weights), not $whole"
[[ $(ls "$files/runs") == "$(printf '%s\n' "${tested[@]}" | sort)" ]] || fail "a file of runs/ was not tried"

# A file that people edit is the same to each command, and base64 of it. No file of a run repeats the base64.
cat >strict.json <<JSON
{"train_batch_size": 4, "zero_optimization": {"stage": 2, "stage3_prefetch_bucket_size": 1000},
 "model": {"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 16, "vocab_size": 256}}
JSON
{ printf '\xef\xbb\xbf' && sed 's/"\([a-z_0-9]*\)":/\1:/g; s/"gpt2"/'"'gpt2'"'/; s/}}$/,},} # the end/; 1s/^/\/* a note *\/\n/' strict.json; } >edited.json
encoded=$(base64 -w 0 edited.json) doors=0
for configuration in strict.json edited.json "$encoded" "$(cat edited.json)"; do
    { "$zero" config "$configuration" --changed && "$zero" plan "$configuration" --gpu cpu --ranks 2 && "$zero" sim "$configuration" --gpu cpu --ranks 2 &&
        "$zero" train "$configuration" --data text --steps 2 --run run --overwrite --quiet &&
        "$zero" train "$configuration" --set seed=3 --data text --steps 2 --run run --overwrite --quiet; } >said 2>err || fail "$configuration: $(cat err)"
    sed 's/[a-z0-9]*\.json/FILE/; s/ in [0-9.]* s//' said >"said.$((++doors))"
    ! grep -rqF "$encoded" run || fail "base64 of the configuration is in $(grep -rlF "$encoded" run)"
done
for ((i = 2; i <= doors; i++)); do diff said.1 "said.$i" || fail "door $i says something else"; done

# Muon without groups: AdamW has embeddings, head and what is no matrix, each optimizer at its own rate, as a file with groups says it.
cat >llama.json <<JSON
{"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 64,
 "max_position_embeddings": 32, "vocab_size": 256, "tie_word_embeddings": false}
JSON
muon() { # PARAMS [MEMBERS]
    echo "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"Muon\", \"params\": {\"weight_decay\": 0.02, $1}}, \"zero_optimization\": {\"stage\": 2}${2-}}" >muon.json
    expect 0 "$zero" train muon.json --model llama.json --data text --ranks 2 --steps 3 --run run --overwrite
    weights
}
others() { echo ", \"param_groups\": [{\"match\": [\"*norm*\", \"*embed*\", \"lm_head*\"], \"optimizer\": \"AdamW\", \"weight_decay\": 0.02, $1}]"; }
grouped=$(muon '"lr": 1e-3' "$(others '"betas": [0.8, 0.9]')") implied=$(muon '"lr": 1e-3, "betas": [0.8, 0.9]')
[[ -n $grouped && $grouped == "$implied" ]] || fail "Muon with groups: $grouped, without: $implied"
grouped=$(muon '"lr": 3e-3' "$(others '"lr": 2e-3')") implied=$(muon '"lr": 1e-3, "muon_lr": 3e-3, "adam_lr": 2e-3')
[[ -n $grouped && $grouped == "$implied" ]] || fail "muon_lr and adam_lr in groups: $grouped, without: $implied"
grouped=$(muon '"lr": 3e-3' "$(others '"lr": 1e-3')") implied=$(muon '"lr": 1e-3, "muon_lr": 3e-3' "$(others '"betas": [0.9, 0.999]')")
[[ -n $grouped && $grouped == "$implied" ]] || fail "muon_lr beside a group: $grouped and $implied"
echo '{"train_batch_size": 4, "optimizer": {"type": "Muon"}}' >muon.json # "wte" does not say that it is an embedding
expect 1 "$zero" train muon.json --model model.json --data text --steps 1 --run run --overwrite
says err "no parameter's name has \"embed\"" && says err '"param_groups": [{"match": ['

tested=()
# refused FILE KEY REASON
refused() {
    expect 2 "$zero" train "$files/refused/$1.json" --model model.json --data text --steps 1 --run run
    says err "$2"
    says err "$3"
    tested+=("$1.json")
}
refused one_bit_adam 'optimizer.type: "OneBitAdam" is not supported here' "only AdamW, Adam, SGD, Lion, Adagrad, Muon and Lamb are here"
refused zero_one_adam 'optimizer.type: "ZeroOneAdam" is not supported here' "choose one of them"
refused sparse_attention 'sparse_attention: ' "DeepSpeed 0.19 has dropped it and it would change the training"
refused compression 'compression_training: ' "DeepSpeed 0.19 has dropped it and it would change the training"
refused curriculum 'curriculum_learning: ' "DeepSpeed 0.19 has dropped it and it would change the training"
refused data_efficiency 'data_efficiency.enabled: true is not supported here' "this engine has no such feature"
refused pytorch_schedule 'scheduler.type: "ReduceLROnPlateau" is not supported here' "zero_engine_set_schedule"
[[ $(ls "$files/refused") == "$(printf '%s\n' "${tested[@]}" | sort)" ]] || fail "a file of refused/ was not tried"
finish
