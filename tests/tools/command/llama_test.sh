#!/usr/bin/env bash
# A Llama as a user has one: trained from a Hugging Face config.json, saved, sampled, exported and imported; what its config.json may
# not ask for is refused with a sentence.
source "$(dirname "$0")/lib.sh" "$1"
text >text
mkdir model
huggingface() {
    cat <<JSON
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": [2, 3],
 "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 64, "max_position_embeddings": 131072,
 "mlp_bias": false, "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
 "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
 "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": true,
 "torch_dtype": "bfloat16", "transformers_version": "4.45.0", "use_cache": true, "vocab_size": 256}
JSON
}
huggingface >model/config.json
cat >c.json <<JSON
{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}, "seed": 3,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "data": {"context": 32}}
JSON
expect 0 "$zero" train c.json --model model --ranks 2 --data text --steps 60 --run run --save-every 30
says out "model     Llama"
says out "context 32,"
awk -F'"loss": ' '{split($2, a, ","); l[NR] = a[1]} END {exit !(l[NR] < l[1] / 2)}' run/metrics.jsonl || fail "the loss does not halve"
first=$(weights)
expect 0 "$zero" train c.json --model model --ranks 2 --data text --steps 60 --run again --save-every 30
expect 0 "$zero" train c.json --model model --ranks 2 --data text --steps 60 --run again --resume 30
[[ -n $first && $(weights) == "$first" ]] || fail "resumed: $(weights), at once $first"

# A sample is of the saved model, though its context is 131,072 tokens.
expect 0 "$zero" sample run/checkpoints --tokens 40 --prompt "line 1"
says out "line 1"
cp out sampled
expect 0 "$zero" ckpt export run/checkpoints hf
says hf/config.json '"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}'
expect 0 "$zero" ckpt import hf in
expect 0 "$zero" sample in --tokens 40 --prompt "line 1"
cmp -s out sampled || fail "imported: $(cat out), trained: $(cat sampled)"

# What other programs leave in a config.json changes nothing; a key that may be a number of the model is refused by name.
left='"unsloth_version": "2026.4.2", "_attn_implementation_autoset": true, "max_sequence_length": 131072, "auto_map": {}, "temperature": 0.7,
 "num_beams": 1, "_commit_hash": null, "bos_token_id": [1], "auto_map": {"AutoModelForCausalLM": "modeling.LlamaForCausalLM"}'
huggingface | sed "s/\"bos_token_id\": 1/$(tr -d '\n' <<<"${left/\"auto_map\": \{\}, /}")/" >model/config.json
expect 0 "$zero" train c.json --model model --ranks 2 --data text --steps 60 --run left --save-every 60
cat out err >both && says both "model.auto_map: the model's own code is not run"
[[ $(weights) == "$first" ]] || fail "with keys of other programs: $(weights), without $first"
for key in qk_norm rope_local_base_freq logits_scaling o_proj_bias attention_window num_experts; do
    huggingface | sed "s/^{/{\"$key\": 1, /" >model/config.json
    expect 2 "$zero" train c.json --model model --data text && says err "model.$key: unknown key"
done

refused() {
    huggingface | sed "s/$1/$2/" >model/config.json
    expect 2 "$zero" train c.json --model model --data text
    says err "$3"
}
refused '"mlp_bias": false' '"mlp_bias": true' "model.mlp_bias: true is not supported here"
refused '"rope_type": "llama3"' '"rope_type": "dynamic"' 'model.rope_scaling.rope_type: "dynamic" is not supported here'
refused '"num_key_value_heads": 2' '"num_key_value_heads": 3' "model.num_key_value_heads: 3 does not divide num_attention_heads 4"
refused '"hidden_size"' '"n_embd": 32, "hidden_size"' "model.n_embd: a llama has no such key: write hidden_size instead"
refused '"max_position_embeddings": 131072' '"max_position_embeddings": 16' "data.context: 32 is more than max_position_embeddings 16"
finish
