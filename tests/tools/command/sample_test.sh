#!/usr/bin/env bash
# Text of a model: the same with and without its keys and values kept, the draws, tokens as text by the model's tokenizer, and
# its end; and zero eval, beside the losses of zero train.
tiny=$PWD/$(dirname "$2")/.. # tiny_llama
source "$(dirname "$0")/lib.sh" "$1"
text 300 >text
sample() { "$zero" sample "$@" 2>err || fail "zero sample $*"; }
same() { [[ $1 == "$2" && -n $1 ]] || fail "$3: \"$1\" and \"$2\""; }

# Kept keys and values: in GPT-2's words and Llama's, also beyond the context, where all positions move; in a run, too.
config 2 >gpt2.json && llama_config 2 >llama.json
for kind in gpt2 llama; do
    expect 0 "$zero" train $kind.json --data text --steps 30 --save-every 30 --run $kind --sample 20
    says out "sample:"
    for prompt in "line 1" "the quick brown fox jumps over"; do
        same "$(sample $kind --tokens 50 --prompt "$prompt")" "$(sample $kind/checkpoints --tokens 50 --prompt "$prompt" --no-cache)" $kind
    done
done

# The draws.
same "$(sample gpt2 --tokens 40 --temperature 0 --seed 2)" "$(sample gpt2 --tokens 40 --top-k 1 --seed 3)" "the most probable"
same "$(sample gpt2 --tokens 40 --temperature 0)" "$(sample gpt2 --tokens 40 --top-p 0.0001 --temperature 9)" "the fewest"
same "$(sample gpt2 --tokens 40)" "$(sample gpt2 --tokens 40 --top-k 999 --top-p 1 --seed 1)" "all tokens"
[[ $(sample gpt2 --tokens 40 --temperature 9) != "$(sample gpt2 --tokens 40 --temperature 0)" ]] || fail "the temperature changes nothing"
expect 2 "$zero" sample gpt2 --top-p 2 && says err "--top-p is a probability"
expect 2 "$zero" sample gpt2 --temperature warm && says err "--temperature needs a number"

# Numbers of tokens, and their text: a letter each, and the first one special.
mkdir model && cp "$tiny"/tiny_llama/* model
numbers=$(sample model --prompt-ids 3,4 --tokens 6 --temperature 0 | tail -1)
letters=abcdefghijklmnopqrstuvwx
{
    printf '{"decoder": {"type": "ByteLevel"}, "added_tokens": [{"id": 0, "content": "a", "special": true}], "model": {"vocab": {'
    for ((i = 0; i < 24; i++)); do printf '%s"%s": %d' "${comma-}" ${letters:i:1} $i && comma=', '; done
    printf '}}}'
} >model/tokenizer.json
spelled=de # the prompt
for n in $numbers; do ((n)) && spelled+=${letters:n:1}; done
same "$(sample model --prompt-ids "3 4" --tokens 6 --temperature 0 | tail -1)" "$spelled" "the text of $numbers"
set -- $numbers
echo "{\"eos_token_id\": [23, $3]}" >model/generation_config.json
ended=de
for n in $numbers; do
    [[ $n == "$3" ]] && break
    ((n)) && ended+=${letters:n:1}
done
same "$(sample model --prompt-ids 3,4 --tokens 6 --temperature 0 | tail -1)" "$ended" "up to the end"
same "$(sample model --prompt-ids 3,4 --tokens 6 --temperature 0 --ignore-end | tail -1)" "$spelled" "beyond the end"
echo '{"eos_token_id": [-1, -2]}' >model/generation_config.json
same "$(sample model --prompt-ids 3,4 --tokens 6 --temperature 0 | tail -1)" "$spelled" "no end has a number below 0"
# A tokenizer that cannot be read: numbers, and a sentence that says why.
mv model/tokenizer.json . && echo '{"decoder": {"type": "WordPiece"}}' >model/tokenizer.json
same "$(sample model --prompt-ids 3,4 --tokens 6 --temperature 0 | tail -1)" "$numbers" "without a tokenizer"
says err "numbers of tokens follow in place of text" && says err "its decoder is neither" && mv tokenizer.json model
expect 1 "$zero" sample model --prompt-ids 3,24 && says err "24 is not below vocab_size 24"
expect 1 "$zero" sample model --prompt-ids three && says err "write them as 1,2,3"
expect 1 "$zero" sample model --prompt the && says err "give --prompt-ids"
expect 1 "$zero" sample model --tokenizer nowhere && says err "nowhere"

# A run that began with the model writes text, and its checkpoint knows the tokenizer.
{
    printf '\x88\xd8\x34\x01\x01\x00\x00\x00\x90\x01\x00\x00'
    head -c 1012 /dev/zero
    for ((i = 0; i < 400; i++)); do printf "\\x$(printf %02x $((i * 7 % 24)))\\x00"; done
} >tokens.bin
echo '{"train_batch_size": 4, "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 3}}' >c.json
expect 0 "$zero" train c.json --model model --ranks 2 --data tokens.bin --steps 2 --run run --save-every 2 --sample 8
grep -A1 '^sample:' out | tail -1 | grep -qE '^[b-x]{1,8}$' || fail "no text at the end of a run"
sample run --prompt-ids 1 --tokens 8 | tail -1 | grep -qE '^b[b-x]*$' || fail "no text of a checkpoint"

same "$(mv model gone && sample run --prompt-ids 1 --tokens 8 | tail -1)" "$(mv gone model && sample run --prompt-ids 1 --tokens 8 | tail -1)" "a run without the model's directory"
rm -r run/tokenizer && mv model gone && expect 0 "$zero" sample run --prompt-ids 1 --tokens 2 && says err "$PWD/model, from which the model came, is not there any more"
expect 0 "$zero" sample run --prompt-ids 1 --tokens 2 --tokenizer gone && ! grep -q "not there" err || fail "--tokenizer is not taken"
mv gone model

# A run in the model's own directory: the weights that it saved, and not those that it began with.
cp -r model inside
expect 0 "$zero" train c.json --model inside --ranks 2 --data tokens.bin --steps 2 --run inside --save-every 2
expect 0 "$zero" eval inside/checkpoints --data tokens.bin && grep ^loss out >before
expect 0 "$zero" eval inside --data tokens.bin && grep ^loss out | cmp - before || fail "eval of a run takes the weights beside it"
same "$(sample inside --prompt-ids 1 --tokens 8 | tail -1)" "$(sample inside/checkpoints --prompt-ids 1 --tokens 8 | tail -1)" "a run in a model's directory"

expect 1 "$zero" sample run --prompt text && says err "tools/tokenize $PWD/model --ids TEXT" && says err "--chat TEXT"

# eval: the loss of the first step, before it; and the held-out loss at the end, of text and of tokens.
first() { sed -nE '1s/.*"loss": ([^,]+),.*/\1/p' "$1/metrics.jsonl"; }
last() { sed -nE '$s/.*"eval_loss": ([^,]+),.*/\1/p' "$1/metrics.jsonl"; }
loss() { sed -nE 's/^loss +//p' out; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && a - b < 2e-5 && b - a < 2e-5) }' || fail "$3: $1 and $2"; }
expect 0 "$zero" eval model --data tokens.bin --samples 4 --batch 3
near "$(loss)" "$(first run)" "eval of a model, and its first step"
says out "4 samples of 8 tokens"
near "$(sed -n 's/^perplexity *//p' out)" "$(awk -v l="$(loss)" 'BEGIN { printf "%.6g", exp(l) }')" "the perplexity"
text 20 >held
expect 0 "$zero" train gpt2.json --data text --steps 3 --save-every 3 --run held.run --set data.eval='["held"]' --eval-every 3
expect 0 "$zero" eval held.run --data held
near "$(loss)" "$(last held.run)" "eval of a run, and what it measured"
# Where a launcher has said of ranks, too: both are of one process.
expect 0 "$zero" sample gpt2 --tokens 5 && mv out alone
export RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000))
expect 0 timeout 60 "$zero" sample gpt2 --tokens 5
cmp alone out || fail "another sample beside a launcher's variables"
expect 0 timeout 60 "$zero" eval held.run --data held
near "$(loss)" "$(last held.run)" "eval beside a launcher's variables"
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
expect 0 "$zero" eval llama --data held --context 9 && says out "of 9 tokens"
expect 1 "$zero" eval llama --data held --context 99 && says err "at most 17"
expect 1 "$zero" eval gpt2 --data held --context 9 && says err "exactly 32"
head -c 1030 tokens.bin | sed 's/\x90\x01/\x03\x00/' >short.bin
expect 1 "$zero" eval model --data short.bin && says err "the data has 3 tokens, too few for one sample of 8 (--context)"
expect 1 "$zero" eval model --data held && says err "of it with tools/tokenize" && ! grep -q "data block" err || fail "eval has no data block"
expect 2 "$zero" eval gpt2 && says err "give --data"
# A run's own settings, which a line says: what it held out (of files of its own, or a part of its data, from another directory), the
# length of its samples, its type.
expect 0 "$zero" eval held.run && says out "held out by the run" && says out "settings    of the run: fp32, sequences of 32 tokens"
near "$(loss)" "$(last held.run)" "eval of what a run held out"
sed 's/{/{"data": {"context": 4, "eval": 0.1}, "fp16": {"enabled": true, "initial_scale_power": 8}, /' c.json >short.json
expect 0 "$zero" train short.json --model model --ranks 2 --data tokens.bin --steps 2 --run short --save-every 2 --eval-every 2 --quiet
mkdir -p below && cd below || exit 1
expect 0 "$zero" eval ../short/checkpoints && says out "settings    of the run: fp16, sequences of 4 tokens" && says out "9 samples of 4 tokens, held out by the run"
near "$(loss)" "$(last ../short)" "eval in the run's type"
cd .. && expect 0 "$zero" eval short --data tokens.bin --context 8 && says out "49 samples of 8 tokens"
expect 2 "$zero" eval run && says err "because the run held out no data (data.eval): give --data PATH"
expect 0 "$zero" sample short --prompt-ids 1 --tokens 4 && says err "settings of the run: fp16, sequences of 4 tokens; tokens of $PWD/model"
finish
