#!/usr/bin/env bash
# The weights of --model: loaded where they lie, in each type and in several files, by each rank what it holds; and out again
# with what belongs to the model beside them.
tiny=$PWD/$(dirname "$2")/.. # tiny_gpt2 and tiny_llama
source "$(dirname "$0")/lib.sh" "$1"

# The first 24 token ids in llm.c's format, 400 tokens.
{
    printf '\x88\xd8\x34\x01\x01\x00\x00\x00\x90\x01\x00\x00'
    head -c 1012 /dev/zero
    for ((i = 0; i < 400; i++)); do printf "\\x$(printf %02x $((i * 7 % 24)))\\x00"; done
} >tokens.bin
settings() {
    cat <<JSON
{"train_batch_size": 4, "zero_optimization": {"stage": $1, "stage3_param_persistence_threshold": 0}, "seed": 5,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "data": {"path": ["tokens.bin"]}${2-}}
JSON
}
loss() { sed -nE '1s/.*"loss": ([^,]+),.*/\1/p' "$1/metrics.jsonl"; }
for stage in 0 1 2 3; do settings $stage >zero$stage.json; done

for kind in gpt2 llama; do
    model=$tiny/tiny_$kind
    # Today's way round: a temporary checkpoint. The same weights come out.
    expect 0 "$zero" ckpt import "$model" in.$kind/checkpoints
    expect 0 "$zero" train zero3.json --model "$model" --ranks 2 --steps 3 --run in.$kind --resume --quiet
    hash=$(weights) && [[ -n $hash ]] || fail "no hash of $kind"
    for stage in 0 1 2 3; do
        expect 0 "$zero" train zero$stage.json --model "$model" --ranks 2 --steps 3 --run $kind.$stage
        [[ $(weights) == "$hash" ]] || fail "$kind at stage $stage begins with other weights than its import"
        says out "begins    with the weights of $model: 1 safetensors file, fp32"
    done
    expect 0 "$zero" train zero3.json --model "$model" --ranks 2 --steps 3 --run random.$kind --random
    [[ $(weights) != "$hash" ]] || fail "--random begins with the weights of $model"
    says out "begins    with random weights, of seed 5"
    expect 0 "$zero" train zero3.json --model "$model/config.json" --ranks 2 --steps 3 --run random.$kind --overwrite && says out "with random weights"
done

# A directory without weights says that it has none, a pickle how to convert it.
mkdir -p bare pickle bare/.cache/huggingface/download && : >bare/README.pt.md && : >bare/.cache/huggingface/download/config.json.metadata && cp "$tiny/tiny_gpt2/config.json" bare && cp "$tiny/tiny_gpt2/config.json" pickle && : >pickle/pytorch_model.bin
expect 0 "$zero" train zero1.json --model bare --steps 1 --run bare.run && says out "seed 5: bare has none"
expect 2 "$zero" train zero1.json --model pickle --steps 1 --run pickle.run
says err "pytorch_model.bin" && says err "save_pretrained" && says err "--random"
[[ ! -e pickle.run ]] || fail "a refused run left a directory"
expect 0 "$zero" train zero1.json --model pickle --steps 1 --run pickle.run --overwrite --random
expect 2 "$zero" train zero1.json --model pickle --run pickle.run --resume --random && says err "drop one"
# So does a directory with other weights that are not read: never random weights where there are weights. FILE WHY
while read -r file why; do
    mkdir -p "other/$(dirname "$file")" && cp "$tiny/tiny_gpt2/config.json" other && : >"other/$file"
    expect 2 "$zero" train zero1.json --model other --steps 1 --run other.run && says err "$file" && says err "$why"
    rm -r other
done <<'END'
model-00001-of-00002.safetensors model.safetensors.index.json
consolidated.safetensors not read
model.fp16.safetensors not read
tiny.Q4_K_M.gguf not read
original/consolidated.00.pth pickle
pytorch_model-00001-of-00002.bin pickle
tf_model.h5 not read
adapter_model.safetensors adapter
model.ckpt-1000.data-00000-of-00001 pickle
checkpoint-500/model.safetensors checkpoint-500
.cache/huggingface/download/abc.incomplete finish
END
cp -r "$tiny/tiny_gpt2" adapted && echo '{}' >adapted/adapter_config.json # its adapter would be left out
expect 2 "$zero" train zero1.json --model adapted --steps 1 --run other.run && says err "adapter_config.json"
cp -r "$tiny/tiny_gpt2" dangling && ln -sf ../blobs/none dangling/model.safetensors
expect 2 "$zero" train zero1.json --model dangling --steps 1 --run other.run && says err "dangling/model.safetensors"
expect 1 "$zero" ckpt import pickle out.pickle && says err "pytorch_model.bin"
[[ ! -e other.run ]] || fail "a refused run left a directory"
expect 0 "$zero" train zero1.json --model bare --data tokens.bin --steps 1 --run bare/run --save-every 1 # of the run are not of the model
expect 0 "$zero" train zero1.json --model bare --data tokens.bin --steps 1 --run bare/run --overwrite

# Damage is said before the run begins.
mkdir cut && cp "$tiny"/tiny_gpt2/config.json cut && head -c 2000 "$tiny/tiny_gpt2/model.safetensors" >cut/model.safetensors
expect 2 "$zero" train zero1.json --model cut --steps 1 --run cut.run && says err "cut/model.safetensors"

# A name out of a foreign file is printed without the characters that a terminal obeys.
escape=$'\x1b'
tame() { expect "$1" "${@:2}"; cat out err | LC_ALL=C grep -q "$escape" && fail "an escape sequence reaches the terminal: ${*:2}"; }
mkdir shard && cp "$tiny/tiny_gpt2/config.json" shard
echo '{"weight_map": {"wte.weight": "\u001b[31m\nred.safetensors"}}' >shard/model.safetensors.index.json
tame 2 "$zero" train zero1.json --model shard --steps 1 --run shard.run && says err '"?[31m?red.safetensors"'
tame 1 "$zero" eval shard --data tokens.bin
tame 1 "$zero" ckpt import shard shard.out
cp -r "$tiny/tiny_gpt2" "red$escape[31m" # its name is a note of checkpoints
expect 0 "$zero" ckpt import "red$escape[31m" shard.out
tame 0 "$zero" ckpt info shard.out && says out 'red?[31m'

# Larger: several files, and 16 bits. Each loads to what it holds, at first with the same loss.
big='"model": {"n_layer": 2, "n_embd": 128, "n_head": 2, "n_positions": 16, "vocab_size": 24}'
settings 3 ", $big" >big.json
expect 0 "$zero" train big.json --steps 2 --save-every 2 --run big --quiet
expect 0 "$zero" ckpt export big/checkpoints above/below/fp32
expect 0 "$zero" ckpt export big/checkpoints parts --file-mib 1
expect 0 "$zero" ckpt export big/checkpoints bf16 --dtype bf16
expect 0 "$zero" ckpt export big/checkpoints fp16 --dtype float16
expect 2 "$zero" ckpt export big/checkpoints int8 --dtype int8 && says err "fp32, bf16 or fp16"
for dir in above/below/fp32 parts bf16 fp16; do
    expect 0 "$zero" train zero3.json --model $dir --ranks 2 --steps 1 --run begin.${dir##*/} && grep -h '^begins' out
done >begins
for word in "1 safetensors file, fp32" "2 safetensors files, fp32" "1 safetensors file, bf16" "1 safetensors file, fp16"; do
    says begins "$word"
done
[[ $(loss begin.parts) == "$(loss begin.fp32)" ]] || fail "loss $(loss begin.parts) from parts, $(loss begin.fp32) from one file"
for dir in bf16 fp16; do
    awk -v a="$(loss begin.$dir)" -v b="$(loss begin.fp32)" 'BEGIN { exit !(a - b < 1e-2 && b - a < 1e-2 && a != b) }' ||
        fail "loss $(loss begin.$dir) from $dir, $(loss begin.fp32) from fp32"
done
says bf16/config.json '"dtype": "bfloat16"' && says fp16/config.json '"dtype": "float16"'
(($(stat -c %s bf16/model.safetensors) * 10 < $(stat -c %s above/below/fp32/model.safetensors) * 6)) || fail "bf16 is not half"

# More files than may be open at first, each with three descriptors.
settings 0 ', "model": {"n_layer": 1, "n_embd": 512, "n_head": 2, "n_positions": 16, "vocab_size": 24}' >wide.json
expect 0 "$zero" train wide.json --steps 1 --save-every 1 --run wide --quiet
(ulimit -Sn 12 && expect 0 "$zero" ckpt export wide/checkpoints wide.out --file-mib 1)
[[ -f wide.out/model-00009-of-00009.safetensors ]] || fail "no file 9 of 9"

# What belongs to the model goes out with it: ids, tokenizer, generation.
mkdir own && cp "$tiny"/tiny_gpt2/* own && echo '{"a": 1}' >own/tokenizer.json && echo '{"b": 2}' >own/generation_config.json
sed -E '/"(bos|eos|pad)_token_id"/d; s/^\{/{"bos_token_id": 21, "eos_token_id": 22, "pad_token_id": 23,/' "$tiny/tiny_gpt2/config.json" >own/config.json
expect 0 "$zero" train zero3.json --model own --steps 2 --save-every 1 --run kept --quiet
expect 0 "$zero" train zero3.json --model own --steps 3 --save-every 1 --run kept --resume --quiet
hash=$(weights)
# A run keeps its model, wherever the directory is by then: --resume needs none. A file of that name that no run wrote stays.
for from in own own/config.json; do
    cp -r own away && expect 0 "$zero" train zero3.json --model away${from#own} --steps 2 --save-every 1 --run again --overwrite --quiet
    rm -r away && expect 0 "$zero" train zero3.json --steps 3 --save-every 1 --run again --resume --quiet
    [[ $from != own || $(weights) == "$hash" ]] || fail "--resume without --model: $(weights), with it $hash"
    expect 0 "$zero" train zero3.json --steps 4 --run again --resume 2 --quiet
done
expect 0 "$zero" train zero3.json --steps 5 --save-every 1 --run again --continue --quiet # a checkpoint is there
expect 2 "$zero" train zero3.json --steps 5 --save-every 1 --run fresh --continue && says err "give --model DIR"
expect 2 "$zero" train zero3.json --model meta-llama/Llama-3.2-1B && says err "there is no such directory of a model" && says err "hf download"
expect 2 "$zero" train zero3.json --model "$tiny/tiny_gpt2/model.safetensors" && says err "holds weights: give the directory"
echo '{"messages": []}' >chat.jsonl
expect 1 "$zero" train zero3.json --model "$tiny/tiny_gpt2" --data chat.jsonl && says err "chat.jsonl is JSON lines, and the tokens of a model with" && ! grep -q '"bytes"' err || fail "a chat is to be trained by its bytes"
expect 0 "$zero" train zero3.json --model "$tiny/tiny_gpt2" --steps 1 --run unsaved --quiet
for how in "sample unsaved" "eval unsaved --data tokens.bin" "ckpt info unsaved" "ckpt export unsaved unsaved.out"; do
    expect 1 "$zero" $how && says err "unsaved is a run that saved no checkpoint: zero train --save-every N makes them"
done
expect 1 "$zero" ckpt verify nowhere && says err "nowhere is not there"
expect 0 "$zero" ckpt info again && says out "again/checkpoints/step_0000000"
expect 0 "$zero" ckpt verify again
expect 0 "$zero" ckpt diff again again/checkpoints
expect 0 "$zero" ckpt export again again.out && [[ -s again.out/model.safetensors ]] || fail "no weights in again.out"
mkdir foreign && echo '{"mine": 1}' >foreign/model.json
expect 0 "$zero" train zero3.json --model own --steps 1 --save-every 1 --run foreign --quiet
[[ $(cat foreign/model.json) == '{"mine": 1}' ]] || fail "a file of another program was replaced"
expect 0 "$zero" train zero3.json --steps 2 --run foreign --resume --quiet # from the directory where the model was
# Before a checkpoint, and from a shadow, the weights are read where they were: never random ones.
settings 3 ', "nvme": {"shadow": true}' | sed "s|\"stage\": 3|&, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"$PWD/drive\"}|" >shadow.json
mkdir drive && expect 0 "$zero" train shadow.json --model own --steps 3 --run whole --quiet && hash=$(weights)
expect 0 "$zero" train shadow.json --model own --steps 2 --save-every 9 --run begun --quiet && rm -r begun/checkpoints
expect 0 "$zero" train shadow.json --steps 3 --save-every 9 --run begun --continue --discard-shadow --quiet
[[ $(weights) == "$hash" ]] || fail "--continue without a checkpoint: $(weights), not $hash"
expect 0 "$zero" train shadow.json --model own --steps 2 --run shadowed --quiet
expect 0 "$zero" train shadow.json --steps 3 --run shadowed --recover --quiet
[[ $(weights) == "$hash" ]] || fail "--recover without --model: $(weights), not $hash"
expect 0 "$zero" train --steps 4 --run shadowed --recover --quiet
mv own hidden && rm -r begun/checkpoints
expect 2 "$zero" train zero3.json --steps 2 --run foreign --resume && says err "$PWD/own, which are not there any more: give --model DIR"
expect 2 "$zero" train shadow.json --steps 3 --save-every 9 --run begun --continue --discard-shadow && says err "give --model DIR"
mv hidden own
expect 0 "$zero" ckpt export kept/checkpoints kept.out
for file in tokenizer.json generation_config.json; do cmp own/$file kept.out/$file || fail "$file was not kept"; done
says kept.out/config.json '"bos_token_id": 21' && says kept.out/config.json '"eos_token_id": 22' && says kept.out/config.json '"pad_token_id": 23'
expect 0 "$zero" train zero3.json --model kept.out --steps 1 --run kept.again
# If the directory is gone, with what the run keeps of it, wherever the run is by then; a directory of another program stays.
mkdir -p mine/tokenizer && echo mine >mine/tokenizer/tokenizer.json
expect 0 "$zero" train zero3.json --model own --steps 1 --run mine --quiet
[[ $(cat mine/tokenizer/* | tr '\n' ' ') == "mine " ]] || fail "a directory of another program was replaced"
mv own moved && mv kept put
expect 0 "$zero" ckpt export put kept2.out && [[ ! -s err ]] || fail "the run keeps no tokenizer"
for file in tokenizer.json generation_config.json; do cmp moved/$file kept2.out/$file || fail "$file was not kept by the run"; done
[[ ! -e kept2.out/of_run ]] || fail "a file of the run is exported"
rm -r put/tokenizer
expect 0 "$zero" ckpt export put/checkpoints gone.out && says err "tokenizer's files are not exported"
says gone.out/config.json '"eos_token_id": 22'
finish
