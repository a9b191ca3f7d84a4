#!/usr/bin/env bash
# A run from its start to the hash of its weights: what it prints and writes, its data, and a failure of one rank.
source "$(dirname "$0")/lib.sh" "$1"
unset ONEDNN_MAX_CPU_ISA
text 400 >text
config 3 ', "data": {"path": ["text"], "order": "shuffled", "eval": 0.1}, "steps_per_print": 5' >c.json

expect 0 "$zero" train c.json --ranks 2 --steps 20 --eval-every 10 --run a/run --sample 20 --prompt "line "
says out "ZeRO stage 3" && says out "held out:" && says out "step 5/20" && says out "tokens/s" && says out "optimizer state"
[[ $(tail -n 1 out) =~ ^weights\ [0-9a-f]{32}$ ]] || fail "the last line is no hash: $(tail -n 1 out)"
first=$(weights)
[[ $(wc -l <a/run/metrics.jsonl) == 20 ]] || fail "metrics.jsonl has $(wc -l <a/run/metrics.jsonl) lines, expected 20"
number='-?[0-9.]+(e[-+][0-9]+)?'
grep -vE "^\{\"step\": [0-9]+, (\"[a-z_]+\": $number, )+\"bytes\": \{\"device\": [0-9]+, \"cpu\": [0-9]+, \"nvme\": [0-9]+\}\}$" \
    a/run/metrics.jsonl >err && fail "a line of metrics.jsonl is not an object of numbers"
[[ $(grep -c '"eval_loss"' a/run/metrics.jsonl) == 2 ]] || fail "the held-out loss was not measured twice"
losses() { sed -E 's/.*"loss": ([^,]+),.*/\1/' "$1"; }
awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first - 1) }' <(losses a/run/metrics.jsonl) ||
    fail "the loss did not fall: $(losses a/run/metrics.jsonl | tr '\n' ' ')"
grep -q '"wire_bytes": 0,' a/run/metrics.jsonl && fail "two ranks trained and nothing was sent"

# The same run again, quietly and without measuring: the same weights, and little else to read.
expect 0 "$zero" train c.json --ranks 2 --steps 20 --run b --quiet
[[ $(weights) == "$first" ]] || fail "a second run has other weights"
[[ $(wc -l <out) == 1 ]] || fail "--quiet printed more than the hash"

# The file of the configuration is read once: it may be a pipe, which gives its text once, or change meanwhile.
expect 0 "$zero" train <(cat c.json) --ranks 2 --steps 20 --run piped --quiet
[[ $(weights) == "$first" ]] || fail "a piped configuration has other weights"
expect 0 "$zero" train <(cat c.json) --ranks 2 --steps 20 --run piped --quiet --overwrite --set steps_per_print=4
[[ $(weights) == "$first" ]] || fail "a piped configuration has other weights with --set"
sed 's/"seed"/"sed"/' c.json >wrong.json
expect 2 "$zero" train wrong.json && says err "zero train: wrong.json: sed: unknown key"
expect 2 "$zero" train missing.json && says err "zero train: missing.json: cannot be opened: No such file or directory; give a file"

# The mean over the global batch: one rank with two micro-steps sees the samples that two ranks see.
config 3 ', "data": {"path": ["text"]}, "train_batch_size": 4' >same.json
expect 0 "$zero" train same.json --ranks 1 --steps 1 --run one --quiet
expect 0 "$zero" train same.json --ranks 2 --steps 1 --run two --quiet
[[ $(losses one/metrics.jsonl | cut -c1-6) == $(losses two/metrics.jsonl | cut -c1-6) ]] ||
    fail "loss $(losses one/metrics.jsonl) on 1 rank, $(losses two/metrics.jsonl) on 2"

# llm.c's token files: magic 20240520 and version 1 in little-endian int32, then the number of tokens, here 400.
{
    printf '\x88\xd8\x34\x01\x01\x00\x00\x00\x90\x01\x00\x00'
    head -c 1012 /dev/zero
    for ((i = 0; i < 400; i++)); do printf "\\x0$((i % 7))\\x00"; done
} >tokens.bin
config >t.json
expect 0 "$zero" train t.json --data tokens.bin --steps 2 --run t --sample 3 && says out "400 tokens in 1 file,"
[[ $(grep -A 1 '^sample:' out | tail -n 1) =~ ^[0-9]+\ [0-9]+\ [0-9]+\ $ ]] || fail "no three tokens were sampled"
expect 2 "$zero" train t.json --data tokens.bin --steps 2 --run t --overwrite --sample 3 --prompt hi && says err "--prompt is text"

# An untrained model samples all bytes; a terminal gets those that can be printed.
expect 0 "$zero" train same.json --steps 1 --run one --overwrite --sample 60 --quiet
LC_ALL=C grep -q $'[^\t -~]' out && fail "the sample has bytes that are not printable"

# The held-out samples are the same, each counted once, whatever the ranks: 12 samples a step, 54 and 256 measured.
for eval in 0.1 0.9; do
    expected=""
    for ranks in 1 2 3 4; do
        config 3 ", \"data\": {\"path\": [\"text\"], \"eval\": $eval}, \"train_batch_size\": 12" |
            sed 's/"train_micro_batch_size_per_gpu": 2, //' >held.json
        expect 0 "$zero" train held.json --ranks "$ranks" --steps 1 --eval-every 1 --run held --overwrite
        loss=$(sed -E 's/.*"eval_loss": ([0-9.]{6}).*/\1/' held/metrics.jsonl)
        expected=${expected:-$loss}
        [[ $loss == "$expected" ]] || fail "eval $eval: held-out loss $loss on $ranks ranks, $expected on 1"
    done
done
says out ", 256 of them measured"

# The 256 are spread over all 512: which half comes first makes no difference.
head -c 8192 text >half
yes '~#' | head -c 8192 >other
cat half other half | head -c 16385 >half-first
cat other half other | head -c 16385 >other-first
for first in half other; do
    config 3 ", \"data\": {\"path\": [\"text\"], \"eval\": \"$first-first\"}" >spread.json
    expect 0 "$zero" train spread.json --steps 20 --eval-every 20 --run "$first-run" --overwrite && says out "512 samples, 256 of them measured"
done
held() { sed -En 's/.*"eval_loss": ([0-9.]{4}).*/\1/p' "$1/metrics.jsonl"; }
[[ $(held half-run) == "$(held other-run)" ]] || fail "held-out loss $(held half-run), the other way round $(held other-run)"

# What a step counts does not depend on measuring before it, nor on opening.
config 3 ', "data": {"path": ["text"], "eval": 0.1}' >count.json
expect 0 "$zero" train count.json --ranks 2 --steps 3 --run plain --quiet
expect 0 "$zero" train count.json --ranks 2 --steps 3 --eval-every 1 --run measured --quiet
counts() { grep -oE '"(wire_bytes|(gather|reduce)_(calls|elements))": [0-9]+' "$1/metrics.jsonl"; }
diff <(counts plain) <(counts measured) >err || fail "measuring counts as training"
# What a later step sends is planned.
for stage in 0 1 2 3; do
    expect 0 "$zero" train count.json --ranks 2 --steps 3 --run planned --overwrite --quiet --set zero_optimization.stage=$stage --set gradient_accumulation_steps=2
    planned=$(grep -oE '"wire_bytes": *[0-9]+' planned/run.json | grep -oE '[0-9]+')
    [[ $(tail -1 planned/metrics.jsonl) == *"\"wire_bytes\": ${planned:-unknown},"* ]] || fail "stage $stage: planned $planned, $(tail -1 planned/metrics.jsonl)"
done
[[ $(counts plain | sort -u | wc -l) == 5 ]] || fail "steps count differently: $(counts plain | sort -u | tr '\n' ' ')"

# Runs of the same second have directories of their own.
for i in 1 2 3; do
    "$zero" train same.json --steps 1 --quiet >/dev/null &
    pids[i]=$!
done
for i in 1 2 3; do wait "${pids[i]}" || fail "run $i of the same second failed"; done
[[ $(ls runs | wc -l) == 3 ]] || fail "three runs made $(ls runs | wc -l) directories"

# A full disk is said, also by the last step.
mkdir full && ln -s /dev/full full/metrics.jsonl
expect 1 "$zero" train same.json --steps 1 --run full --quiet && says err "metrics.jsonl: No space left"

# Bytes are the tokens of a vocabulary of 256 alone, and JSON lines are no text, unless one says so.
sed 's/256/2000/' t.json >words.json
expect 1 "$zero" train words.json --data text --steps 1 --run words
says err "data: text is text, and the tokens of a model with vocab_size 2000 are not bytes: make a token file"
echo '{"text": "a line"}' >lines.jsonl
cat text >>lines.jsonl
expect 1 "$zero" train t.json --data text lines.jsonl --steps 1 --run words && says err "data: lines.jsonl is JSON lines, not text"
# So are other kinds, by the end of their names or by their first bytes.
for name in lines.JSONL list.json table.csv table.tsv text.txt.gz; do
    cp text $name
    expect 1 "$zero" train t.json --data $name --steps 1 --run words && says err "data: $name is " && says err "not text"
done
for begin in '{"text": "a"}' '[{"text": "a"}]' '\x1f\x8b' 'PAR1' '\x88\xd8\x34\x01\x01\x00'; do
    { printf "$begin" && cat text; } >named.txt
    expect 1 "$zero" train t.json --data named.txt --steps 1 --run words && says err "data: named.txt is " && says err "not text"
done
[[ ! -e words ]] || fail "a refused run left a directory"
for file in words.json t.json; do sed 's/^{/{"data": {"bytes": true}, /' $file >bytes.$file; done
expect 0 "$zero" train bytes.words.json --data text --steps 1 --run words
expect 0 "$zero" train bytes.t.json --data text lines.jsonl --steps 1 --run lines
sed 's/^{/{"data": {"eval": "lines.jsonl"}, /' t.json >evaluated.json
expect 1 "$zero" train evaluated.json --data text --steps 1 --run evaluated && says err "data: lines.jsonl is JSON lines"
expect 0 "$zero" train words.json --data tokens.bin --steps 1 --run tokens

# One pass over the data by default: 400 tokens, 12 samples, 2 to a batch.
expect 0 "$zero" train t.json --data tokens.bin --run pass --quiet
[[ $(wc -l <pass/metrics.jsonl) == 6 ]] || fail "one pass took $(wc -l <pass/metrics.jsonl) steps, expected 6"

# A token outside the vocabulary, met by one rank in its second step: all stop, it is said once.
printf '\xff%.0s' {1..40} >z-bad
head -c 320 text >a-good
sed 's/"vocab_size": 256}/"vocab_size": 128}, "data": {"bytes": true}/' t.json >small.json
expect 1 "$zero" train small.json --ranks 3 --data a-good z-bad --steps 50 --run bad --quiet
says err "of z-bad is 255, but the model's vocab_size is 128"
[[ $(wc -l <err) == 1 ]] || fail "the failure was said $(wc -l <err) times"
head -c 800 text >a-good # and in its fifth
expect 1 "$zero" train small.json --ranks 3 --data a-good z-bad --steps 50 --run bad --overwrite && says out "trained 4 steps"
[[ $(sed -n 's/^trained \([0-9]*\) steps.*loss \([0-9.]*\),.*/\1 \2/p' out) == "$(wc -l <bad/metrics.jsonl) $(losses bad/metrics.jsonl | tail -n 1 | xargs printf %.4f)" ]] ||
    fail "the summary is not the last step's: $(losses bad/metrics.jsonl | tr '\n' ' ')"
finish
