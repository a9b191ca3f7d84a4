#!/usr/bin/env bash
# tokenize_test.sh ZERO TOKENIZE ONCE.SH: text and JSON lines become token files with which a model trains; where Python ($PYTHON) has
# the packages.
source "$3"
zero=$PWD/$1 tokenize=$PWD/$2
python=${PYTHON:-$(getent passwd "$(id -u)" | cut -d: -f6)/.cache/zero-python/bin/python}
[[ -n ${PYTHON-} || -x $python ]] || python=python3
if ! has_modules "$python" tokenizers; then
    echo "SKIPPED: $python has no tokenizers; run tools/setup --python"
    exit "${ZERO_SET_UP:-0}"
fi
set -eu -o pipefail
cd "$TEST_TMPDIR"
own_python=$python
once "$python" tokenizers transformers.models.auto.tokenization_auto
export PYTHON=$python
mkdir model
"$python" - <<'PY'
from tokenizers import Tokenizer, models, pre_tokenizers, trainers, decoders
t = Tokenizer(models.BPE())
t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
t.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 9,
                      trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>", "<|user|>"],
                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
t.save("model/tokenizer.json")
PY
decode() { # FILE: the text, with | for the token between documents
    "$python" - "$1" <<'PY'
import array, sys
from tokenizers import Tokenizer
t = Tokenizer.from_file("model/tokenizer.json")
data = open(sys.argv[1], "rb").read()
head, ids = array.array("i", data[:1024]), list(array.array("H", data[1024:]))
assert list(head[:3]) == [20240520, 1, len(ids)], head[:3]
text = t.decode(ids, skip_special_tokens=False)
print(text.replace("<|endoftext|>", "|"), end="")
PY
}
expect() { [[ $(decode "$1") == "$2" ]] || { echo "FAILED: $1: $(decode "$1"), expected $2" && exit 1; }; }
says() { local said && said=$("${@:2}" 2>&1) && echo "FAILED: ${*:2} passes" && exit 1
    [[ $said == *"$1"* ]] || { echo "FAILED: $said lacks $1" && exit 1; }; }

printf 'the fox: grün' >a.txt
printf '{"text": "one"}\n\n{"prompt": "two ", "completion": "three"}\n' >b.jsonl
PYTHON=$own_python "$tokenize" model all.bin a.txt b.jsonl | grep -q "tokens of 3 documents, vocabulary 2"
expect all.bin 'the fox: grün|one|two three|'
"$tokenize" model/tokenizer.json none.bin a.txt b.jsonl --end ''
expect none.bin 'the fox: grünonetwo three'
"$tokenize" model user.bin a.txt --end '<|user|>'
expect user.bin 'the fox: grün<|user|>'
if has_modules "$own_python" transformers jinja2; then
    echo '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>",
 "chat_template": "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}"}' >model/tokenizer_config.json
    echo '{"messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": "fox"}]}' >c.jsonl
    "$tokenize" model chat.bin c.jsonl
    expect chat.bin '<|user|>hi<|user|>fox|'
    # The tokens of a user's message; and with the tokenizer of a run's model.
    mkdir -p run && echo "{\"kept\": {\"options\": [\"--steps\", \"1\", \"--model\", \"$PWD/model\"]}}" >run/run.json
    [[ $("$tokenize" run --chat hi) == "$("$tokenize" model --ids '<|user|>hi')" ]] || { echo "FAILED: --chat prints $("$tokenize" run --chat hi)" && exit 1; }
fi

# The numbers of a text, and their text again.
ids=$("$tokenize" model --ids 'the quick fox: grün')
[[ $ids =~ ^[0-9,]+$ ]] || { echo "FAILED: --ids prints $ids" && exit 1; }

# One kind of data, whatever the file is named and however it is written; what is neither text nor JSON is refused by name.
printf '{"text": "one"}\n{"text": "two three"}\n' >kind.jsonl
cp kind.jsonl kind.JSON && cp kind.jsonl kind.txt && gzip -k kind.jsonl && xz -k kind.jsonl && mv kind.jsonl.xz packed
printf '\xef\xbb\xbf[\n  {"text": "one"},\n  {"text": "two three"}\n]\n' >list.json
printf '[{"text": "one"}, {"text": "two three"}]' >line.Jsonl
printf 'n,text\n1,one\n2,"two three"\n' >kind.csv && printf 'text\tn\none\t1\ntwo three\t2\n' >kind.TSV
for file in kind.jsonl kind.JSON kind.txt kind.jsonl.gz packed list.json line.Jsonl kind.csv kind.TSV; do
    "$tokenize" model kind.bin $file
    expect kind.bin 'one|two three|'
done
printf 'PAR1\0\0' >kind.parquet && printf '\x28\xb5\x2f\xfdabc' >kind.jsonl.zst && printf '\x93NUMPY\1\0' >kind.txt
for file in kind.parquet kind.jsonl.zst kind.txt; do says "$file is neither text nor JSON" "$tokenize" model bad.bin $file; done
echo '{"data": [{"text": "one"}]}' >bad.json
says 'bad.json:1 has neither "text"' "$tokenize" model bad.bin bad.json

# A tokenizer.json keeps the length to which it was last cut, which is not that of data; it begins each text as it says.
mkdir begins
"$python" - <<'PY'
import json
raw = json.load(open("model/tokenizer.json"))
raw["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
raw["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"}
special = {t: {"id": t, "ids": [i], "tokens": [t]} for i, t in enumerate(["<|endoftext|>", "<|user|>"])}
raw["post_processor"] = {"type": "TemplateProcessing", "special_tokens": special, "pair": [],
    "single": [{"SpecialToken": {"id": "<|user|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}]}
json.dump(raw, open("begins/tokenizer.json", "w"))
PY
"$tokenize" begins begins.bin a.txt b.jsonl
expect begins.bin '<|user|>the fox: grün|<|user|>one|<|user|>two three|'
[[ $("$tokenize" begins --ids 'the quick fox: grün') == "1,$ids" ]] || { echo "FAILED: --ids with a beginning" && exit 1; }

# Loss masks: a completion, the assistant's turns, labels. mask FILE: the text, where what does not count is in brackets.
mask() {
    "$python" - "$1" <<'PY'
import array, itertools, sys
from tokenizers import Tokenizer
t = Tokenizer.from_file("model/tokenizer.json")
ids = array.array("H", open(sys.argv[1] + ".bin", "rb").read()[1024:])
mask = open(sys.argv[1] + ".mask", "rb").read()
assert len(ids) == len(mask)
for counts, run in itertools.groupby(zip(mask, ids), lambda p: p[0]):
    text = t.decode([i for _, i in run], skip_special_tokens=False).replace("<|endoftext|>", "|")
    print(text if counts else f"[{text}]", end="")
PY
}
counts() { [[ $(mask "$1") == "$2" ]] || { echo "FAILED: $1: $(mask "$1"), expected $2" && exit 1; }; }
"$tokenize" begins begins.bin b.jsonl
counts begins '<|user|>one|[<|user|>two ]three|'
"$tokenize" model part.bin a.txt b.jsonl | grep -q "targets by part.mask"
counts part 'the fox: grün|one|[two ]three|'
"$tokenize" model part.bin b.jsonl --no-mask
[[ ! -e part.mask ]] || { echo "FAILED: --no-mask leaves the earlier mask" && exit 1; }
echo '{"input_ids": [72, 73, 74], "labels": [-100, 73, 74]}' >labels.jsonl
"$tokenize" model labels.bin labels.jsonl
[[ $(od -An -tu1 labels.mask | tr -d ' ') == 0111 ]] || { echo "FAILED: the labels' mask" && exit 1; }
echo '{"input_ids": [72, 73], "labels": [73, 74]}' >labels.jsonl
says 'labels.jsonl:1: each of the "labels"' "$tokenize" model bad.bin labels.jsonl
if [[ -e c.jsonl ]]; then
    echo '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "fox"}, {"role": "user", "content": "dog"},
 {"role": "assistant", "content": "jumps"}]}' | tr -d '\n' >turns.jsonl
    sed -i "s/<|user|>{{/{{ '<|user|>' if m.role == 'user' else '>' }}{{/; s/{% endfor %}/{% endfor %}{{ '>' if add_generation_prompt else '' }}/" model/tokenizer_config.json
    "$tokenize" model turns.bin turns.jsonl
    counts turns '[<|user|>hi>]fox[<|user|>dog>]jumps|'
    # ShareGPT's names, a system text beside the turns, a turn that is not to be learned, and a completion in messages.
    echo '{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "fox"}]}
{"system": "be", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "fox", "weight": 0}]}
{"prompt": [{"role": "user", "content": "hi"}], "completion": [{"role": "assistant", "content": "fox"}]}' >turns2.jsonl
    "$tokenize" model turns.bin turns2.jsonl
    counts turns '[<|user|>hi>]fox|[>be<|user|>hi>fox|<|user|>hi>]fox|'
    for line in '{"conversations": [{"from": "narrator\u001b[2J", "value": "hi"}]} narrator?[2J' '{"messages": [{"content": "hi"}]} role' \
        '{"messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "f"}]} "tools"' \
        '{"messages": [{"role": "user", "content": "hi"}], "functions": [{"name": "f"}]} "functions"'; do
        echo "${line% *}" >bad.jsonl
        says "${line##* }" "$tokenize" model bad.bin bad.jsonl
    done
    # Each turn ends with the token that ends documents: a token inside a document ends none (2 in the mask).
    cp -r model ends && sed -i "s/{{ m.content }}/{{ m.content }}<|endoftext|>/" ends/tokenizer_config.json
    "$tokenize" ends ends.bin turns.jsonl | grep -q '"document_end": 0'
    [[ $(od -An -v -tu1 ends.mask | tr -d ' \n') =~ ^0+20+1+30+20+1+$ ]] || { echo "FAILED: the ends' mask $(od -An -v -tu1 ends.mask)" && exit 1; }
    "$tokenize" ends ends.bin turns.jsonl --no-mask
    [[ $(od -An -v -tu1 ends.mask | tr -d ' \n') =~ ^1+31+31+31+$ ]] || { echo "FAILED: the ends' mask $(od -An -v -tu1 ends.mask)" && exit 1; }
    sed -i 's/{% for m/{{ messages|length }}{% for m/' model/tokenizer_config.json
    says "turns.jsonl:1: the chat template changes earlier turns" "$tokenize" model bad.bin turns.jsonl
    "$tokenize" model whole.bin turns.jsonl --no-mask
fi

echo '{"words": 1}' >bad.jsonl
says 'bad.jsonl:1 has neither "text"' "$tokenize" model bad.bin bad.jsonl
says "nowhere cannot be read" "$tokenize" model bad.bin nowhere
says 'has no token "<nothing>"' "$tokenize" model bad.bin a.txt --end '<nothing>'
says "ends in .bin" "$tokenize" model bad.txt a.txt
[[ ! -e bad.bin && ! -e bad.bin.partial ]] || { echo "FAILED: a refused file left a token file" && exit 1; }

for ((i = 0; i < 40; i++)); do echo '{"text": "the quick brown fox jumps over the lazy dog"}'; done >many.jsonl
"$tokenize" model many.bin many.jsonl
echo '{"train_batch_size": 2, "optimizer": {"type": "AdamW"}, "data": {"path": ["many.bin"]},
 "model": {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 16, "vocab_size": 300}}' >c.json
"$zero" train c.json --steps 2 --run run --quiet

# What a model says is printed as the package prints it: byte-level, and in SentencePiece's spelling.
"$python" - <<'PY'
import json, pathlib
from tokenizers import Tokenizer, models, trainers, decoders
t = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
t.train_from_iterator(["▁the▁quick▁brown▁fox"] * 9, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>"]
                      + [f"<0x{i:02X}>" for i in range(256)]))
t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
pathlib.Path("spaces").mkdir()
t.save("spaces/tokenizer.json")
raw = json.load(open("spaces/tokenizer.json"))  # the trainer makes bytes special, which Llama's are not
for token in raw["added_tokens"]:
    token["special"] = not token["content"].startswith("<0x")
json.dump(raw, open("spaces/tokenizer.json", "w"))
PY
"$zero" train c.json --steps 2 --run said --save-every 2 --quiet
# said TOKENIZER IDS: the prompt's text and what follows begin as the package has them.
said() {
    local numbers && numbers=$("$zero" sample said --prompt-ids "$2" --tokens 12 --temperature 3 | tail -1)
    "$zero" sample said --prompt-ids "$2" --tokens 12 --temperature 3 --tokenizer $1 >got
    "$python" - $1 "$2" "$numbers" <<'PY'
import re, sys
from tokenizers import Tokenizer
t = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
prompt, rest = [int(n) for n in sys.argv[2].split(",")], [int(n) for n in sys.argv[3].split()]
def shown(text):  # control characters are printed as points, and bytes that are no text as so many U+FFFD as they may be
    return re.sub("\ufffd+", "?", "".join("." if ord(c) < 32 and c not in "\n\t" or 127 <= ord(c) < 160 else c for c in text))
got = shown(open("got", encoding="utf-8", newline="").read().removeprefix("sample:\n"))
# The package gives up a whole run of SentencePiece's bytes that is no text as a whole; a random model's is none.
expected = shown(t.decode(prompt + (rest if sys.argv[1] == "model" else [])))
if not got.startswith(expected) or len(expected) < 9:
    sys.exit(f"FAILED: {got!r}, expected {expected!r}")
PY
}
said model "$ids"
said spaces "$("$python" -c 'from tokenizers import Tokenizer
t = Tokenizer.from_file("spaces/tokenizer.json")
print(*[t.token_to_id(p) for p in "▁ t h e ▁ q <0x67> <0x72> <0xC3> <0xBC> <0x6E> <0x0A> ▁ f o x".split()], sep=",")')"
