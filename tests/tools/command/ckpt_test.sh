#!/usr/bin/env bash
# `zero ckpt` and `zero sample`: what they say about checkpoints that are whole, equal, different and damaged.
source "$(dirname "$0")/lib.sh" "$1"
text >text
config 3 >c.json
expect 0 "$zero" train c.json --data text --ranks 2 --steps 3 --run a --save-every 1
hash=$(weights)
config 0 >zero0.json
expect 0 "$zero" train zero0.json --data text --ranks 2 --steps 3 --run b --save-every 3
[[ $(weights) == "$hash" ]] || fail "stages differ"

expect 0 "$zero" ckpt info a/checkpoints
says out "a/checkpoints/step_00000003"
says out "saved by    2 ranks at stage 3"
says out "optimizer   adamw: exp_avg, exp_avg_sq; lr 0.01"
says out "samples     12"
says out "wte.weight                               256 x 32"
expect 0 "$zero" ckpt info a/checkpoints/step_00000001
says out "step        1, 0 skipped"

# Saved at another stage, hence in other pieces: the same. A step later: not the same.
expect 0 "$zero" ckpt diff a/checkpoints b/checkpoints
[[ ! -s out ]] || fail "diff of equals speaks"
expect 1 "$zero" ckpt diff a/checkpoints a/checkpoints/step_00000002
says out "param/wte.weight: "
says out "exp_avg_sq/h.1.mlp.c_fc.weight: "
says out " of 8192 elements differ, by at most "

expect 0 "$zero" ckpt verify a/checkpoints
says out "step_00000003 is whole"
cp -r a/checkpoints/step_00000003 flipped
header=$(od -An -tu8 -N8 flipped/rank_00001.safetensors) # a byte of the first unit's weights, which come first
printf 'x' | dd of=flipped/rank_00001.safetensors bs=1 seek=$((header + 108)) conv=notrunc 2>/dev/null
expect 1 "$zero" ckpt verify flipped
says err "zero ckpt: flipped/rank_00001.safetensors: bytes "
expect 1 "$zero" ckpt export flipped out_flipped
[[ ! -e out_flipped && ! -e out_flipped.partial ]] || fail "a failed export left something"
rm flipped/rank_00000.safetensors
expect 1 "$zero" ckpt verify flipped
says err "flipped/rank_00000.safetensors: No such file"

# Out and in again: the weights are those; a run goes on from them.
expect 0 "$zero" ckpt export a/checkpoints exported
mkdir fine
expect 0 "$zero" ckpt import exported fine/checkpoints
expect 1 "$zero" ckpt diff a/checkpoints fine/checkpoints
says out "the first has 2 optimizer states, the second 0"
grep -q "elements differ" out && fail "exported and imported: other weights"
expect 0 "$zero" train c.json --data text --ranks 2 --steps 2 --run fine --resume
says out "resumed   after step 0, at sample 0"

# No import over checkpoints: the run that saved them would go on from other weights.
for root in a/checkpoints fine/checkpoints; do
    cp $root/latest before
    expect 1 "$zero" ckpt import exported $root
    says err "zero ckpt: $root holds step_0000000"
    says err "already: name a directory without checkpoints, or remove them"
    cmp -s before $root/latest || fail "an import over checkpoints"
done
[[ ! -e a/checkpoints/step_00000000 ]] || fail "an import among the checkpoints of a run"
mkdir torn && cp a/checkpoints/latest torn
expect 1 "$zero" ckpt import exported torn && says err "torn holds latest already"

# A path that is not UTF-8 is no text of a checkpoint: it is not noted, and all else goes on.
latin=$'caf\xe9'
expect 0 "$zero" train zero0.json --data text --steps 1 --run "$latin" --save-every 1
expect 0 "$zero" ckpt export "$latin/checkpoints" "$latin/exported"
expect 0 "$zero" ckpt import "$latin/exported" latin/checkpoints
says err "is not UTF-8, and so the checkpoint does not note it: the tokenizer's files will not be exported"
expect 0 "$zero" ckpt export latin/checkpoints latin/exported
[[ ! -s err ]] || fail "no source is noted, and an export speaks of it"

expect 0 "$zero" sample a/checkpoints --tokens 20 --prompt "line"
says out "line"
cp out first
expect 0 "$zero" sample b/checkpoints --tokens 20 --prompt "line"
cmp -s first out || fail "equal weights, other text"
expect 0 "$zero" sample a/checkpoints --tokens 20 --prompt "line" --seed 2
cmp -s first out && fail "another seed, the same text"

# Averaged weights: the training is the same; they go from stage to stage, and are what --ema takes.
loss() { sed -n 's/^loss *//p' out; }
config 3 ', "ema": {"decay": 0.9}' >ema.json
config 0 ', "ema": {"decay": 0.9}' >ema0.json
expect 0 "$zero" train ema.json --data text --ranks 2 --steps 3 --run averaged --save-every 3
[[ $(weights) == "$hash" ]] || fail "averages change the training"
expect 0 "$zero" ckpt info averaged/checkpoints
says out "optimizer   adamw: exp_avg, exp_avg_sq, ema; lr 0.01"
expect 1 "$zero" ckpt diff a/checkpoints averaged/checkpoints
says out "the first has 2 optimizer states, the second 3"
grep -q "elements differ" out && fail "averages change weights or moments"
expect 0 "$zero" train ema0.json --data text --ranks 2 --steps 2 --run moved --save-every 2
expect 0 "$zero" train ema.json --data text --ranks 2 --steps 3 --run moved --resume --save-every 3
expect 0 "$zero" ckpt diff averaged/checkpoints moved/checkpoints
expect 0 "$zero" ckpt export averaged/checkpoints exported_ema --ema
expect 0 "$zero" ckpt import exported_ema imported_ema
expect 0 "$zero" eval imported_ema --data text && losses=$(loss)
expect 0 "$zero" eval averaged --data text --ema
[[ -n $losses && $(loss) == "$losses" ]] || fail "the loss of the averages is $(loss), and $losses where they are the weights"
says out ", averaged"
expect 0 "$zero" eval averaged --data text
[[ $(loss) != "$losses" ]] || fail "the averages are the weights"

# The same loss in the training, of the same bits at every stage and tier; the training has the same bits as without.
head -c 3000 text >other
expect 0 "$zero" eval averaged --data other --ema && losses=$(loss)
measured=
for more in zero_optimization.stage={0,1,2,3} zero_optimization.offload_optimizer='{"device": "nvme", "nvme_path": "swap"}'; do
    expect 0 "$zero" train ema.json --data text --set data.eval=other --set "$more" --ranks 2 --steps 3 --eval-every 2 --ema --run measured --overwrite
    [[ $(weights) == "$hash" ]] || fail "$more: measuring averages changes the training"
    printed=$(sed -En 's/^step 3.*  held out ([0-9.]+)  averaged ([0-9.]+)  .*/\2/p' out)
    [[ -n $printed && $losses == "${printed:0:-1}"* ]] || fail "$more: $printed was printed, and zero eval says $losses"
    now=$(sed -En 's/.*"eval_loss": ([^,]+), "eval_loss_ema": ([^,]+),.*/\1 \2/p' measured/metrics.jsonl)
    [[ $(wc -l <<<"$now") == 2 && $now == "${measured:-$now}" ]] || fail "$more: losses $now, elsewhere $measured"
    measured=$now
done
expect 2 "$zero" train ema.json --data text --ema && says err "whenever --eval-every K measures the weights"
expect 2 "$zero" train ema.json --data text --set data.eval=other --set ema.decay=0 --eval-every 2 --ema
says err "keeps no averaged weights: set ema.decay"
expect 0 "$zero" sample averaged --tokens 20 --prompt "line" --ema && cp out first
expect 0 "$zero" sample imported_ema --tokens 20 --prompt "line"
cmp -s first out || fail "equal averages, other text"
expect 1 "$zero" sample a --ema && says err "has no averaged weights"
expect 1 "$zero" ckpt export a/checkpoints out_ema --ema && says err "has no averaged weights"
expect 1 "$zero" eval exported --data text --ema && says err "--ema: exported is no checkpoint"

expect 2 "$zero" ckpt
says err "say what to do: info, verify, diff, export or import"
expect 2 "$zero" ckpt diff a
says err "diff takes 2"
expect 1 "$zero" ckpt info nowhere
says err "nowhere"
expect 1 "$zero" ckpt import text out_text
says err "is neither a directory with a config.json"
mkdir piped && mkfifo pipe.bin piped/config.json
expect 1 "$zero" ckpt import pipe.bin out_pipe
says err "is neither a directory with a config.json"
expect 2 "$zero" plan c.json --model piped --ranks 2 --gpu cpu
says err "piped/config.json: cannot be opened: it is not a regular file"
expect 2 "$zero" sample
says err "DIR is missing"
finish
