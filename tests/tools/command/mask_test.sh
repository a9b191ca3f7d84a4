#!/usr/bin/env bash
# mask_test.sh ZERO: loss masks and bounds of documents as a user meets them. A mask of ones changes no bit; with another one, losses are means over the targets
# that count, over all ranks and micro-steps, on every stage; `zero eval` measures the same; a mask is part of the data.
source "$(dirname "$0")/lib.sh" "$1"

# tokens NAME COUNT: COUNT tokens of 16 bits, and a mask of which about a third counts, none of it at one end.
tokens() {
    python3 - "$1" "$2" <<'END'
import array, random, sys
name, count = sys.argv[1], int(sys.argv[2])
draw = random.Random(7)
open(name + ".bin", "wb").write(array.array("i", [20240520, 1, count] + [0] * 253).tobytes()
                                + array.array("H", [draw.choice((3, 5, 8, 9)) for i in range(count)]).tobytes())
open(name + ".mask", "wb").write(bytes(i < count // 2 and draw.random() < 0.6 for i in range(count)))
END
}
# train RANKS STAGE EXTRA: prints the weights' hash
train() {
    odd_config "$2" "$3" | sed 's/"vocab_size": 256/"vocab_size": 256, "tie_word_embeddings": false/' >c.json
    expect 0 "$zero" train c.json --ranks "$1" --data text.bin --run run --overwrite --quiet --steps 3
    weights
}
micros=', "gradient_accumulation_steps": 2, "gradient_accumulation_mode": "every"'
tokens text 1200

for ranks in 1 2 3; do
    first=$(train $ranks 0 "$micros")
    for stage in 1 2 3 '3, "micro_order": "vertical"' '3, "offload_optimizer": {"device": "nvme", "nvme_path": "swap"}'; do
        got=$(train $ranks "$stage" "$micros")
        [[ -n $got && $got == "$first" ]] || fail "stage $stage, $ranks ranks: $got, stage 0 $first"
    done
done

# Bounds of documents, also.
documents=', "data": {"document_end": 5}'
first=$(train 2 0 "$micros$documents")
got=$(train 2 3 "$micros$documents")
[[ -n $got && $got == "$first" ]] || fail "documents: stage 3 $got, stage 0 $first"
[[ $got != "$(train 2 3 "$micros")" ]] || fail "documents: without bounds, the same weights"

# The first loss is the mean of all targets of the step that count: what `zero eval` measures of the same samples. 3 ranks x 2 x 2 samples,
# of which some ranks have few that count, or none.
odd_config 3 "$micros" | sed 's/"lr": 1e-2/"lr": 0/' >c.json
expect 0 "$zero" train c.json --ranks 3 --data text.bin --run run --overwrite --steps 5 --save-every 1
cp err first.err
expect 0 "$zero" eval run --data text.bin --samples 12
says out "count, by the loss masks"
python3 - run/metrics.jsonl out <<'END' || fail "the loss of a step is not that of its samples"
import json, re, sys
trained = json.loads(open(sys.argv[1]).readline())["loss"]
measured = float(re.search(r"loss +([\d.]+)", open(sys.argv[2]).read()).group(1))
print(trained, measured, file=sys.stderr)
sys.exit(abs(trained - measured) > 2e-6)
END
# The fourth step is beyond the last target that counts.
says first.err "step 4: no target of it counts"
tail -1 run/metrics.jsonl | grep -q '"loss": 0,.*"grad_norm": 0,' || fail "a step without targets has a loss or a gradient"

# The held-out loss is over those that count, however many ranks measure it.
for ranks in 1 3; do
    odd_config 3 | sed 's/"lr": 1e-2/"lr": 0/' >c.json
    expect 0 "$zero" train c.json --ranks $ranks --data text.bin --set data.eval=text.bin --run run --overwrite --steps 1 --eval-every 1
    sed -n 's/.*"eval_loss": \([0-9.]*\),.*/\1/p' run/metrics.jsonl >loss.$ranks
done
awk 'NR == FNR { a = $1; next } { exit !(a > 1 && ($1 - a) ^ 2 < 1e-12) }' loss.1 loss.3 || fail "held-out loss $(cat loss.1), of 3 ranks $(cat loss.3)"

# Bounds of documents are a checkpoint's: its losses are those that its training measured.
odd_config 3 ', "data": {"document_end": 5}' | sed 's/"lr": 1e-2/"lr": 0/' >c.json
expect 0 "$zero" train c.json --ranks 3 --data text.bin --set data.eval=text.bin --run run --overwrite --steps 1 --eval-every 1 --save-every 1
measured=$(sed -n 's/.*"eval_loss": \([0-9.]*\),.*/\1/p' run/metrics.jsonl)
expect 0 "$zero" eval run --data text.bin
awk -v a="$measured" '$1 == "loss" { found = 1; if ((a - $2) ^ 2 > 1e-11) exit 1 } END { exit !found }' out || fail "held-out loss $measured, by zero eval $(cat out)"

# Another mask is other data.
odd_config 3 >c.json
expect 0 "$zero" train c.json --data text.bin --run kept --steps 2 --save-every 1 --quiet
mv text.mask other.mask
expect 1 "$zero" train c.json --data text.bin --run kept --steps 3 --save-every 2 --continue
says err "data"

# Ones change nothing; a mask that is not one of this file ends with a sentence.
plain=$(train 2 3 "$micros")
head -c 1200 /dev/zero | tr '\0' '\1' >text.mask
got=$(train 2 3 "$micros")
[[ -n $plain && $got == "$plain" ]] || fail "a mask of ones: $got, without $plain"
head -c 7 /dev/zero >text.mask
expect 1 "$zero" train c.json --data text.bin --run run --overwrite --quiet
says err "text.mask has 7 bytes, and text.bin 1200 tokens"
head -c 1200 /dev/zero >text.mask
expect 1 "$zero" eval kept --data text.bin
says err "leave no target in the samples"
finish
