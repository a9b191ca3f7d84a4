#!/usr/bin/env bash
# transformers_test.sh ZERO COMPARE_LOGITS PEER.PY ONCE.SH: with Hugging Face's own packages, where Python ($PYTHON) has them.
source "$4"
python=${PYTHON:-$(getent passwd "$(id -u)" | cut -d: -f6)/.cache/zero-python/bin/python}
[[ -n ${PYTHON-} || -x $python ]] || python=python3
if ! has_modules "$python" torch transformers safetensors numpy; then
    echo "SKIPPED: $python has no transformers; run tools/setup --python"
    exit "${ZERO_SET_UP:-0}"
fi
set -eux
zero=$PWD/$1 compare=$PWD/$2 peer=$PWD/$3
cd "$TEST_TMPDIR"
once "$python" torch transformers.models.auto.modeling_auto safetensors
# All kinds: logits, in both directions, and the losses of ten steps.
"$python" "$peer" make_all 64 tokens.bin
cat >ten.json <<JSON
{"train_batch_size": 4, "gradient_clipping": 0, "zero_optimization": {"stage": 3}, "data": {"path": ["tokens.bin"]},
 "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "weight_decay": 0.1}}}
JSON
for logits in */logits.txt; do
    kind=${logits%/*}
    "$zero" ckpt import $kind $kind.in
    "$compare" $kind $kind.in
    "$zero" ckpt export $kind.in $kind.out
    "$zero" train ten.json --model $kind --ranks 2 --steps 10 --run ten.$kind --quiet
done
"$python" "$peer" compare_all tokens.bin
# Several files with an index, as transformers writes and as it reads them.
"$python" "$peer" make parts llama 64 100KB
[[ -f parts/model.safetensors.index.json && ! -f parts/model.safetensors ]]
"$zero" ckpt import parts parts.in
"$compare" parts parts.in
"$zero" ckpt export parts.in parts.out --file-mib 1
"$python" "$peer" compare parts parts.out
# A checkpoint of several ranks, with optimizer state: its files are safetensors, and its weights go out.
gpt2='"n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 8, "vocab_size": 256'
llama='"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
 "num_key_value_heads": 1, "max_position_embeddings": 8, "vocab_size": 256'
# trained NAME MODEL PARAMETER
trained() {
    cat >$1.json <<JSON
{"train_batch_size": 4, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}, "optimizer": {"type": "AdamW"},
 "model": {$2}}
JSON
    "$zero" train $1.json --ranks 2 --data "$peer" --steps 2 --run run.$1 --save-every 1
    "$python" "$peer" read run.$1/checkpoints/step_00000002 | tee names
    grep -q "^exp_avg_sq/$3 " names
    "$zero" ckpt export run.$1/checkpoints trained.$1
    "$python" "$peer" compare trained.$1 trained.$1
}
trained gpt2 "$gpt2" wte.weight
trained llama "$llama" model.layers.1.self_attn.k_proj.weight
