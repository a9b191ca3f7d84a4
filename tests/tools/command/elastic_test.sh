#!/usr/bin/env bash
# A run whose ranks are killed and started again, each time on another number of ranks, over TCP: --continue.
source "$(dirname "$0")/lib.sh" "$1"
text 400 >text
batch() { sed "s/\"train_micro_batch_size_per_gpu\": 2/\"train_batch_size\": $1/"; }
larger() { sed 's/"n_layer": 2, "n_embd": 32/"n_layer": 4, "n_embd": 96/; s/1e-2/1e-3/'; } # so that a kill meets a step
config 3 | batch 12 | larger >c.json
train() { "$zero" train "${config:-c.json}" --data text --steps "$steps" "$@"; }
losses() { sed 's/^{"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/' "$1/metrics.jsonl"; }

port=$((20000 + RANDOM % 12000)) # before the seed: other tests run beside this one
# Starts the ranks; their processes are in `ranks`.
start() { # RUN RANKS
    ranks=()
    local rank
    ((++port))
    for ((rank = 0; rank < $2; rank++)); do
        RANK=$rank WORLD_SIZE=$2 LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            "$zero" train c.json --data text --steps "$steps" --run "$1" --save-every 2 --keep 2 --continue \
            >"out.$rank" 2>"err.$rank" &
        ranks+=($!)
    done
}

there_or_gone() { has_steps "$1" "$2" || ! kill -0 "${ranks[0]}"; } # RUN STEPS

# Kills one rank once the run has made `more` further steps; the others must end by themselves. Another program may have taken the
# port: then the ranks end before, and start again.
kill_one() { # RUN RANKS MORE
    local goal=$(($(steps_of "$1") + $3)) pid killed=0
    for _ in 1 2 3; do
        start "$1" "$2"
        await there_or_gone "$1" "$goal"
        kill -9 "${ranks[RANDOM % $2]}" 2>/dev/null && killed=1
        for pid in "${ranks[@]}"; do wait "$pid"; done 2>/dev/null
        ((killed)) && return
    done
    fail "$1: the ranks had ended before: $(cat err.*)"
}
# Makes three more steps; compares with a run on 2 ranks that nothing interrupted.
finish_run() { # RUN RANKS
    steps=$(($(steps_of "$1") + 3))
    start "$1" "$2"
    for pid in "${ranks[@]}"; do wait "$pid" || fail "$1: a rank ended with status $?: $(cat err.*)"; done
    ended=$(sed -n 's/^weights //p' out.0)
    expect 0 train --ranks 2 --run whole --overwrite
    losses "$1" | cut -d ' ' -f 1 | diff <(seq $steps) - || fail "$1: not every step once, in order"
    steps=1000000
}

# Killed and resized ten times, in the middle of steps and saves: every step once, in order, with the same samples.
RANDOM=1
steps=1000000
sizes=(2 4 1 3 2 3 4 2 1 4)
((!short)) || sizes=(2 4 1 3)
for size in "${sizes[@]}"; do kill_one resized "$size" $((RANDOM % 5 + 1)); done
finish_run resized 3
paste -d ' ' <(losses whole) <(losses resized) | awk '{ d = $2 - $4; if (d > 2e-3 || d < -2e-3) { print; bad = 1 } } END { exit bad }' ||
    fail "resized: other losses"

# Always on as many ranks: the same bits.
for _ in 1 2 3; do kill_one same 2 $((RANDOM % 4 + 1)); done
finish_run same 2
[[ -n $ended && $(weights) == "$ended" ]] || fail "killed on 2 ranks: other weights"
losses whole | diff - <(losses same) || fail "killed on 2 ranks: other losses"

# A batch that changes with the ranks, or other settings, are refused, and the metrics stay.
cp same/metrics.jsonl before
config 3 | batch 6 | larger >smaller.json
config=smaller.json expect 1 train --ranks 2 --run same --save-every 2 --continue
says err "same was trained with other settings than this configuration: its train_batch_size is 12, this configuration has 6"
cmp -s before same/metrics.jsonl || fail "a refused run changed the metrics"
expect 2 train --run same --continue
says err "--save-every N makes them"
finish
