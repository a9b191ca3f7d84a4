#!/usr/bin/env bash
# Keys that only the command reads: each row trains with one value changed and says what must then differ.
# tests/engine/key_effects_test.c has the other keys, and fails if one of these rows is missing.
source "$(dirname "$0")/lib.sh" "$1"
text 100 | tee text >lines.jsonl
{ echo "other text"; text 50; } >other
base() {
    cat <<JSON
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "seed": 3, "steps_per_print": 4, "threads": 1,
 "comm": {"reduction": "ordered"}, "zero_optimization": {"stage": 3},
 "tensorboard": {"enabled": true, "output_path": "run/monitors/events", "job_name": "a"},
 "csv_monitor": {"enabled": true, "output_path": "run/monitors/tables", "job_name": "b"},
 "data": {"path": ["text"], "order": "sequential", "document_end": -1, "eval": 0.1, "bytes": true},
 "model": {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32, "vocab_size": 256,
  "n_inner": 128, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "initializer_range": 0.02,
  "tie_word_embeddings": true}}
JSON
}

# What a run shows: its output is in out, its metrics in run/metrics.jsonl.
lines() { grep -c '^step ' out; }
tokens() { sed -En '$s/.*"tokens": ([0-9]+).*/\1/p' run/metrics.jsonl; }
takes_json() {
    if [[ ${PWD##*/} == unchanged ]]; then base; else cat c.json; fi >json.json
    "$zero" train json.json --data "$work/lines.jsonl" --steps 1 --run json --overwrite >/dev/null 2>&1
    echo "status $?"
}
held_out() { sed -En '$s/.*"eval_loss": ([^,]+),.*/\1/p' run/metrics.jsonl; }
monitored() { find run/monitors -type f -printf '%h\n' | sort -u | tr '\n' ' '; }
staging() { sed -En 's/.*reduction staging +//p' out; }

train() { rm -rf run/monitors && expect 0 "$@" "$zero" train c.json --steps 4 --run run --overwrite --eval-every 4; }
as_ranks() { ASAN_OPTIONS=detect_leaks=0 mpirun --bind-to none --oversubscribe -np 3 "$@"; }

# changed FROM TO: the base with FROM replaced, which must be there.
changed() {
    base | grep -qF -- "$1" || fail "the base has no $1"
    base | awk -v from="$1" -v to="$2" '{ at = index($0, from); if (at) $0 = substr($0, 1, at - 1) to substr($0, at + length(from)) } 1' >c.json
}

# effect KEY WHAT FROM TO [LAUNCHER]: WHAT, a function above, prints something else once FROM has become TO.
unchanged= # the base and launcher of the training in the folder unchanged: one for all rows of a base
effect() {
    local key=$1 what=$2 from=$3 to=$4 before after
    shift 4
    if [[ "$(base) $*" != "$unchanged" ]]; then
        base >c.json && train "$@"
        rm -rf unchanged && mkdir unchanged && cp -r out run unchanged
        unchanged="$(base) $*"
    fi
    before=$(cd unchanged && "$what")
    changed "$from" "$to" && train "$@"
    after=$("$what")
    [[ -n $before && -n $after ]] || fail "$key: no $what to see: \"$before\", \"$after\""
    [[ $before != "$after" ]] || fail "$key: $what is $after with $from and with $to"
}

effect train_batch_size tokens '"gradient_accumulation_steps": 1' '"train_batch_size": 4'
effect train_micro_batch_size_per_gpu tokens '"train_micro_batch_size_per_gpu": 2' '"train_micro_batch_size_per_gpu": 3'
effect seed weights '"seed": 3' '"seed": 4'
effect steps_per_print lines '"steps_per_print": 4' '"steps_per_print": 2'
effect comm.reduction staging '"ordered"' '"native"' as_ranks
effect data.bytes takes_json '"bytes": true' '"bytes": false'
effect data.path weights '["text"]' '["other"]'
effect data.order weights '"sequential"' '"shuffled"'
effect data.document_end weights '"document_end": -1' '"document_end": 32'
effect tensorboard.enabled monitored '"tensorboard": {"enabled": true' '"tensorboard": {"enabled": false'
effect tensorboard.output_path monitored '"output_path": "run/monitors/events"' '"output_path": "run/monitors/others"'
effect tensorboard.job_name monitored '"job_name": "a"' '"job_name": "c"'
effect csv_monitor.enabled monitored '"csv_monitor": {"enabled": true' '"csv_monitor": {"enabled": false'
effect csv_monitor.output_path monitored '"output_path": "run/monitors/tables"' '"output_path": "run/monitors/others"'
effect csv_monitor.job_name monitored '"job_name": "b"' '"job_name": "c"'
effect data.eval held_out '"eval": 0.1' '"eval": ["other"]'
effect model.n_layer weights '"n_layer": 2' '"n_layer": 1'
effect model.n_embd weights '"n_embd": 32' '"n_embd": 16'
effect model.n_head weights '"n_head": 2' '"n_head": 4'
effect model.n_positions tokens '"n_positions": 32' '"n_positions": 16'
effect model.n_ctx tokens '"n_positions": 32' '"n_ctx": 16'
effect model.vocab_size weights '"vocab_size": 256' '"vocab_size": 300'
effect model.n_inner weights '"n_inner": 128' '"n_inner": 64'
effect model.layer_norm_epsilon weights '1e-5' '1e-3'
effect model.initializer_range weights '0.02' '0.03'
effect model.tie_word_embeddings weights 'true' 'false'

# What is computed again shows in memory, not in the weights (recompute_test.sh).
device_activations() { sed -En 's/.*device activations +([^ ].*)/\1/p' out; }
checkpoints() { grep -c 'cpu *activation checkpoints' out; }
effect model.gradient_checkpointing device_activations '"n_inner"' '"gradient_checkpointing": true, "n_inner"'
effect activation_checkpointing.interval device_activations '"threads"' '"activation_checkpointing": {"interval": 1}, "threads"'
effect activation_checkpointing.number_checkpoints device_activations '"threads"' '"activation_checkpointing": {"number_checkpoints": 2}, "threads"'
effect activation_checkpointing.cpu_checkpointing checkpoints '"threads"' '"activation_checkpointing": {"cpu_checkpointing": true}, "threads"'
on_drive() { grep -c 'nvme *activation checkpoints' out; }
swapped() { [[ -d swap ]]; echo $?; }
effect activation_checkpointing.nvme_checkpointing on_drive '"threads"' '"activation_checkpointing": {"nvme_checkpointing": true, "nvme_path": "'"$work"'/other.swap"}, "threads"'
effect activation_checkpointing.nvme_path swapped '"threads"' '"activation_checkpointing": {"nvme_checkpointing": true, "nvme_path": "swap"}, "threads"'
effect zero_optimization.vocabulary_block_rows device_activations '"stage": 3' '"stage": 3, "vocabulary_block_rows": 100'

# The same in Llama's words.
rope='"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 16'
llama='"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 32, "rms_norm_eps": 1e-5'
gpt2='"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "n_inner": 48, "n_positions": 32'
base() {
    cat <<JSON
{"train_micro_batch_size_per_gpu": 2, "seed": 3, "threads": 1, "zero_optimization": {"stage": 3}, "data": {"path": ["text"], "eval": 0.1},
 "model": {$llama, "vocab_size": 256, "rope_theta": 1e4, "rope_scaling": {$rope}}}
JSON
}
effect model.model_type weights "$llama, \"vocab_size\": 256, \"rope_theta\": 1e4, \"rope_scaling\": {$rope}" "$gpt2, \"vocab_size\": 256"
effect model.num_hidden_layers weights '"num_hidden_layers": 2' '"num_hidden_layers": 1'
effect model.hidden_size weights '"hidden_size": 32' '"hidden_size": 64'
effect model.num_attention_heads weights '"num_attention_heads": 4' '"num_attention_heads": 8'
effect model.num_key_value_heads weights '"num_key_value_heads": 2' '"num_key_value_heads": 1'
effect model.intermediate_size weights '"intermediate_size": 48' '"intermediate_size": 40'
effect model.head_dim weights '"rope_theta"' '"head_dim": 10, "rope_theta"'
effect model.max_position_embeddings tokens '"max_position_embeddings": 32' '"max_position_embeddings": 16'
effect model.max_sequence_length tokens '"max_position_embeddings": 32' '"max_sequence_length": 16'
effect data.context tokens '"path": ["text"]' '"path": ["text"], "context": 24'
effect model.rms_norm_eps weights '1e-5' '1e-3'
effect model.rope_theta weights '1e4' '1e2'
effect model.rope_scaling.factor weights '"factor": 8' '"factor": 2'
effect model.rope_scaling.low_freq_factor weights '_factor": 1' '_factor": 0.1'
effect model.rope_scaling.high_freq_factor weights '_factor": 4' '_factor": 2'
effect model.rope_scaling.original_max_position_embeddings weights 'embeddings": 16' 'embeddings": 99'
effect model.rope_scaling.rope_type weights "{$rope}" '{"rope_type": "default"}'
effect model.rope_scaling.type weights "{$rope}" '{"type": "default"}'
# transformers 5's spelling.
effect model.rope_parameters.rope_theta weights '"rope_theta": 1e4' '"rope_parameters": {"rope_theta": 1e2}'
effect model.rope_parameters.rope_type weights "\"rope_scaling\": {$rope}" '"rope_parameters": {"rope_type": "default"}'
spelled() { echo "\"rope_parameters\": {${rope/$1/$2}}"; } # what differs is one value
effect model.rope_parameters.factor weights "\"rope_scaling\": {$rope}" "$(spelled '"factor": 8' '"factor": 2')"
effect model.rope_parameters.low_freq_factor weights "\"rope_scaling\": {$rope}" "$(spelled '_factor": 1' '_factor": 0.1')"
effect model.rope_parameters.high_freq_factor weights "\"rope_scaling\": {$rope}" "$(spelled '_factor": 4' '_factor": 2')"
effect model.rope_parameters.original_max_position_embeddings weights "\"rope_scaling\": {$rope}" "$(spelled '": 16' '": 99')"
# Yarn, whose blend lies within the pairs.
llama=${llama/'"hidden_size": 32'/'"hidden_size": 32, "head_dim": 32'}
rope='"rope_type": "yarn", "factor": 8, "beta_fast": 2, "beta_slow": 0.5, "attention_factor": 1.3, "truncate": true'
yarn() { echo "\"rope_$1\": {${rope/$2/$3}}"; }
effect model.rope_scaling.beta_fast weights "\"rope_scaling\": {$rope}" "$(yarn scaling 'fast": 2' 'fast": 9')"
effect model.rope_scaling.beta_slow weights "\"rope_scaling\": {$rope}" "$(yarn scaling 'slow": 0.5' 'slow": 0.1')"
effect model.rope_scaling.attention_factor weights "\"rope_scaling\": {$rope}" "$(yarn scaling '1.3' '1.4')"
effect model.rope_scaling.truncate weights "\"rope_scaling\": {$rope}" "$(yarn scaling 'true' 'false')"
effect model.rope_parameters.beta_fast weights "\"rope_scaling\": {$rope}" "$(yarn parameters 'fast": 2' 'fast": 9')"
effect model.rope_parameters.beta_slow weights "\"rope_scaling\": {$rope}" "$(yarn parameters 'slow": 0.5' 'slow": 0.1')"
effect model.rope_parameters.attention_factor weights "\"rope_scaling\": {$rope}" "$(yarn parameters '1.3' '1.4')"
effect model.rope_parameters.truncate weights "\"rope_scaling\": {$rope}" "$(yarn parameters 'true' 'false')"
rope='"rope_type": "yarn", "factor": 8, "mscale": 0.5, "mscale_all_dim": 0.7'
effect model.rope_scaling.mscale weights "\"rope_scaling\": {$rope}" "$(yarn scaling '0.5' '0.9')"
effect model.rope_scaling.mscale_all_dim weights "\"rope_scaling\": {$rope}" "$(yarn scaling '0.7' '0.9')"
effect model.rope_parameters.mscale weights "\"rope_scaling\": {$rope}" "$(yarn parameters '0.5' '0.9')"
effect model.rope_parameters.mscale_all_dim weights "\"rope_scaling\": {$rope}" "$(yarn parameters '0.7' '0.9')"
# Windows.
llama=${llama/'"llama"'/'"qwen2", "use_sliding_window": true, "max_window_layers": 0, "sliding_window": 5'}
rope='"rope_type": "default"'
effect model.sliding_window weights '"sliding_window": 5' '"sliding_window": 6'
effect model.use_sliding_window weights '_window": true' '_window": false'
effect model.max_window_layers weights '_layers": 0' '_layers": 1'
effect model.layer_types weights '"sliding_window"' '"layer_types": ["full_attention", "sliding_attention"], "sliding_window"'
finish
