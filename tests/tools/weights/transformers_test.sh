#!/usr/bin/env bash
# transformers_test.sh ZERO COMPARE_LOGITS PEER.PY: with Hugging Face's own packages, where Python ($PYTHON) has them.
python=${PYTHON:-python3}
if ! "$python" -c 'import torch, transformers, safetensors, numpy' 2>/dev/null; then
    echo "not tried: $python has no transformers"
    exit 0
fi
set -eux
zero=$PWD/$1 compare=$PWD/$2 peer=$PWD/$3
cd "$TEST_TMPDIR"
"$python" "$peer" make model 64
"$zero" ckpt import model in
"$compare" model in
"$zero" ckpt export in out
"$python" "$peer" compare model out
# A checkpoint of several ranks, with optimizer state: its files are safetensors, and its weights go out.
cat >c.json <<'JSON'
{"train_batch_size": 4, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}, "optimizer": {"type": "AdamW"},
 "model": {"n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 8, "vocab_size": 256}}
JSON
"$zero" train c.json --ranks 2 --data "$peer" --steps 2 --run run --save-every 1
"$python" "$peer" read run/checkpoints/step_00000002 | tee names
grep -q '^exp_avg_sq/wte.weight ' names
"$zero" ckpt export run/checkpoints trained
"$python" "$peer" compare trained trained
