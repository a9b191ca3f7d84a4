#!/usr/bin/env bash
# A trainer that adopts the engine by a small patch trains as before: the same losses to the last bit on one rank, at every stage and
# with the state on a drive. Two processes add their halves of a gradient in another order than one process adds all of it, so their
# losses are compared with the original's with a tolerance, and to the last bit with each other's at every stage.
set -uo pipefail
trainer=$1 trainer_zero=$2 patch=$3
failures=0
fail() { failures=$((failures + 1)) && echo "FAILED: $*" >&2; }
export OMP_NUM_THREADS=1 # as torchrun does

# Lines that the patch adds: without blank ones, lone braces and comments. They may only become fewer.
lines=$(grep '^+' "$patch" | grep -vcE '^\+(\+\+.*| *([{}]*|/\*.*))$')
((lines <= 50)) || fail "adopting takes $lines lines"

config() { # STAGE MORE
    echo '{"train_batch_size": 4, "gradient_clipping": 0, "optimizer": {"type": "AdamW", "params": {"lr": 3e-3,
        "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.01}}, "zero_optimization": {"stage": '"$1"',
        "stage3_param_persistence_threshold": 0'"${2-}"'}}'
}

cd "$TEST_TMPDIR" || exit 1
trainer=$OLDPWD/$trainer trainer_zero=$OLDPWD/$trainer_zero
"$trainer" 10 >original || fail "the original: exit status $?"
awk '/^step 1 / { first = $4 } /^validation/ { exit !($3 < first - 0.5) }' original || fail "the original does not learn"

same_as_original() { # WHAT JSON
    "$trainer_zero" 10 "$2" >adopted || fail "$1: exit status $?"
    cmp adopted original || fail "$1: other losses than the original's"
}
two_processes() { # WHAT JSON
    local port=$((20000 + RANDOM % 10000))
    export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
    RANK=1 "$trainer_zero" 10 "$2" >adopted.1 &
    RANK=0 "$trainer_zero" 10 "$2" >adopted || fail "$1, two processes: exit status $?"
    wait $! || fail "$1, rank 1: exit status $?"
    unset WORLD_SIZE MASTER_ADDR MASTER_PORT
    cmp adopted adopted.1 || fail "$1: the ranks print other numbers"
    paste -d ' ' original adopted | awk '{ off = $(NF / 2) - $NF }
        NF % 2 || off > 1e-5 || off < -1e-5 { print; bad = 1 } END { exit bad || NR != 11 }' || fail "$1: losses of two processes"
    [[ -e two ]] || cp adopted two
    cmp adopted two || fail "$1: other losses of two processes than at stage 0"
}
for stage in 0 1 2 3; do
    same_as_original "stage $stage" "$(config $stage)"
    two_processes "stage $stage" "$(config $stage)"
done
drive='{"device": "nvme", "nvme_path": "'$TEST_TMPDIR'"}'
same_as_original "stage 3 on a drive" "$(config 3 ", \"offload_optimizer\": $drive, \"offload_param\": $drive")"
((failures == 0))
