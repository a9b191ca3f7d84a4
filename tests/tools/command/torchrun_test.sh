#!/usr/bin/env bash
# torchrun itself: it starts two ranks, one is killed, it starts both again, and the run goes on: from the shadow, and from a checkpoint.
# Needs a Python with PyTorch: $PYTHON, or the one that `tools/setup --python` has made.
source "$(dirname "$0")/lib.sh" "$1"
python=${PYTHON:-$(getent passwd "$(id -u)" | cut -d: -f6)/.cache/zero-python/bin/python}
if ! "$python" -c 'import importlib.util as found, sys; sys.exit(not found.find_spec("torch"))' 2>/dev/null; then
    echo "SKIPPED: $python has no torchrun (PyTorch); run tools/setup --python"
    exit "${ZERO_SET_UP:-0}"
fi
if ((sanitized)); then
    echo "SKIPPED: elastic_test kills ranks under a sanitizer, without torchrun"
    exit 0
fi
export PYTHONDONTWRITEBYTECODE=1
text 400 >text

# The processes of rank 1 that torchrun, whose number is $1, has started.
rank_1() {
    local pid
    for pid in $(cat "/proc/$1/task/$1/children"); do
        tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx RANK=1 && echo "$pid"
    done
}

# survives RUN EVERY CONFIG: one rank is killed in the middle of the steps; after the restart they are all made, and the weights are those
# of a run that never stopped. If this script rests until the run has ended, it is made again.
steps=400
alive=keep_alive_max_attempt=1000 # the only node is not taken for a lost one, however busy it is
survives() {
    local launcher try
    for try in 1 2 3; do
        rm -rf "$1" drive
        "$python" -m torch.distributed.run --no-python --nproc-per-node 2 --max-restarts 1 --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-conf $alive \
            -- "$zero" train "$3" --data text --steps $steps --run "$1" --save-every "$2" --continue >out 2>err &
        launcher=$!
        await has_steps "$1" 30
        kill -KILL "$(rank_1 $launcher)" 2>/dev/null
        wait $launcher || fail "$1: torchrun ended with status $?"
        grep -q '^resumed' out && break
    done
    [[ $(steps_of "$1") == "$steps" ]] || fail "$1: metrics.jsonl has $(steps_of "$1") lines"
    says out "resumed   after step "
    restarted=$(sed -n 's/^resumed *after step //p' out)
    hash=$(weights)
    [[ -n $hash && $hash == "$never" ]] || fail "$1: weights $hash, never stopped $never"
}

config 3 >checkpoints.json
config 3 ', "nvme": {"shadow": true}' |
    sed "s|\"stage\": 3|&, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"$work/drive\"}|" >shadow.json
expect 0 "$zero" train checkpoints.json --data text --ranks 2 --steps $steps --run never
never=$(weights)
survives saved 10 checkpoints.json
[[ $restarted =~ ^[1-9][0-9]*0, ]] || fail "went on after step $restarted, which is no checkpoint's"
survives shadowed $steps shadow.json
[[ $restarted == *", from the shadow" ]] || fail "went on after step $restarted"
finish
