#!/usr/bin/env bash
# kill -9 of one rank of two at random moments of their opening and training: no file is left in nvme_path, and the
# other rank ends by itself. offload_killed.sh PROGRAM [TIMES]     TIMES: 50, or fewer in a short run (tests/seeds.h)
# Every other time mpirun's recovery is on and training has begun: then it is the engine that ends the other rank.
set -uo pipefail
program=$PWD/$1 times=${2:-$((50 / ${ZERO_TEST_DIVISOR:-1}))} failures=0 seen=0
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/zero-XXXXXX")
cd "$work" || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0
export TMPDIR=$work
# Bazel runs several at once: each takes every so many kills. 4 stages and 2 kinds of kill are in each while their number is odd.
shard=${TEST_SHARD_INDEX:-0} shards=${TEST_TOTAL_SHARDS:-1} kills=0
((times < 2 * shards)) && times=$((2 * shards)) # one kill of each kind
[[ -z ${TEST_SHARD_STATUS_FILE-} ]] || touch "$TEST_SHARD_STATUS_FILE"
RANDOM=$((4 + shard))

fail() {
    failures=$((failures + 1))
    echo "FAILED: $*" >&2
    cat "$work/log" >&2
}
await() { # COMMAND...: until it succeeds
    local end=$((SECONDS + 120))
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.05
    done
}
have() { [[ -s $1.0 && -s $1.1 ]]; }
gone() { ! kill -0 "$1" 2>/dev/null; }
there_or_gone() { have "$1" || gone "$launcher"; }
left() { find swap.a swap.b -mindepth 1 2>/dev/null; }

configure() { # STAGE KEYS: 0 to 4
    local drive='"device": "nvme", "nvme_path": ["'$work/swap.a'", "'$work/swap.b'"]' param=''
    (($1 == 3)) && param=', "offload_param": {'$drive'}'
    (($1 >= 2)) && param+=', "offload_gradients": {"device": "nvme"}'
    local more='' state=$drive
    case $2 in
    1) more=', "gradient_accumulation_steps": 2' param+=', "micro_order": "vertical"' ;;
    2) more=', "gradient_clipping": 0' param+=', "update_in_backward": true' ;;
    3) more=', "memory": {"cpu": "560KiB"}' state='"ratio": 0.8, '${drive/nvme/tiered} ;;
    4) param+=', "piece_bytes": 65536' ;;
    esac
    cat >c.json <<JSON
{"train_micro_batch_size_per_gpu": 1, "threads": 1, "comm": {"timeout_s": 1}$more,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
 "zero_optimization": {"stage": $1, "sub_group_size": 1024, "offload_optimizer": {$state}$param}}
JSON
}

# begin MOMENT OPTION...: starts the ranks, and awaits a random time after the moment. A busy machine may let a rank rest for longer than
# timeout_s: then both ranks have ended by themselves, and the answer is false.
begin() {
    local moment=$1
    shift
    rm -f pid.* ready.*
    mpirun "$@" --bind-to none --oversubscribe -np 2 "$program" c.json . >log 2>&1 &
    launcher=$!
    await there_or_gone "$moment" && sleep "0.$(printf %03d $((RANDOM % 600)))"
    have "$moment" && ! gone "$(cat pid.0)" && ! gone "$(cat pid.1)"
}

for ((i = shard; i < times; i += shards)); do
    ((++kills))
    configure $((i % 4)) $((i / 4 % 5))
    how=(pid) victim=$((RANDOM % 2))
    ((i % 2)) && how=(ready --enable-recovery)
    for ((tries = 1; tries <= 5; tries++)); do
        begin "${how[@]}" && break
        kill -TERM $launcher 2>/dev/null
        wait $launcher
        grep -q "has been silent for" log || fail "kill $i: no ${how[0]}, and no rank was silent"
    done
    if ((tries > 5)); then
        fail "kill $i: no ${how[0]}, five times"
        continue
    fi
    [[ -s ready.0 ]] && ((++seen))
    kill -KILL "$(cat pid.$victim)"
    other=$(cat pid.$((1 - victim)))
    if ! await gone "$other"; then
        fail "kill $i of rank $victim, stage $((i % 4)): the other rank still runs after 120 s"
        kill -KILL "$other"
    fi
    wait $launcher
    [[ -z $(left) ]] || fail "kill $i of rank $victim, stage $((i % 4)): left $(left)"
done
# The test can fail: there was a directory to leave something in, and ranks that trained.
[[ -d swap.a && -d swap.b ]] || fail "nothing was ever offloaded"
((seen >= kills / 2)) || fail "only $seen of $kills kills met a rank that trained"
cd / && rm -rf "$work"
echo "$kills kills, $seen of them of ranks that trained"
((failures == 0))
