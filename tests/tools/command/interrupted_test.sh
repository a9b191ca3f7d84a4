#!/usr/bin/env bash
# Runs that a signal interrupts at a moment drawn from a seed, over one rank, threads, TCP and mpirun. Each ends by itself
# with the signal's exit status and a whole checkpoint, and goes on to the weights of a run that nobody interrupted. Products
# run with the stack pointer in the heap (heap_stack.c), as some of oneDNN's kernels do: a handler on a thread that computes
# would abort the run. Every other run also has a handler of a host's, every millisecond.
#   interrupted_test.sh ZERO LIBRARY [RUNS [SEED]]     RUNS: 20, in about 40 s; tools/soak makes 200
source "$(dirname "$0")/lib.sh" "$1"
library=$OLDPWD/$2 seed=${4:-1}
runs=${3:-$((sanitized ? 4 : 20))} # one of each transport
text >text
config 3 ', "comm": {"timeout_s": 30}, "trace": {"steps": 0}' >c.json
steps=40
RANDOM=$seed

# Sanitizers want to be loaded first; their leaks are of Open MPI.
exposed() { LD_PRELOAD=$library ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0 exec "$@"; }

train=("$zero" train c.json --data text --steps $steps --save-every 1000 --run run)
begin() { # TRANSPORT
    case $1 in
    one) exposed "${train[@]}" >out 2>err & ;;
    threads) exposed "${train[@]}" --ranks 2 >out 2>err & ;;
    tcp)
        WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port RANK=1 exposed "${train[@]}" >out.1 2>err.1 &
        WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port RANK=0 exposed "${train[@]}" >out 2>err &
        ;;
    mpirun)
        ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0 mpirun --bind-to none --oversubscribe -np 2 \
            -x LD_PRELOAD="$library" ${HEAP_STACK_ALARM_US+-x HEAP_STACK_ALARM_US} "${train[@]}" >out 2>err &
        ;;
    esac
}
count_steps() { wc -l 2>/dev/null <run/metrics.jsonl || echo 0; }
# The process numbers of the ranks, where each is a process.
ranks() { [[ $1 == mpirun ]] && pgrep -P "$launcher" -f "zero train" || jobs -p; }

weights_of() { expect 0 "${train[@]}" "$@"; weights; }
one=$(weights_of) && rm -rf run
two=$(weights_of --ranks 2) && rm -rf run

interrupt() { # TRANSPORT SIGNAL AFTER: sent to one of its ranks after so many steps
    local transport=$1 signal=$2 after=$3 i pid status expected=$((128 + $(kill -l "$2"))) what="$1, SIG$2 after $3 steps"
    rm -rf run out* err*
    begin "$transport"
    launcher=$!
    for ((i = 0; i < 3000 && $(count_steps) < after; i++)); do sleep 0.01; done
    local -a pids
    mapfile -t pids < <(ranks "$transport")
    pid=${pids[$((RANDOM % ${#pids[@]}))]}
    kill -s "$signal" "$pid" || fail "$what: no rank to interrupt"
    for pid in $(jobs -p); do
        wait "$pid"
        status=$?
        # mpirun has a status of its own: that of the first rank that it hears of.
        ((status == expected)) || fail "$what: exit status $status, expected $expected"
    done
    (($(count_steps) < steps)) || fail "$what: it trained to the end"
    [[ -s run/checkpoints/latest ]] || fail "$what: no checkpoint"
    expect 0 "$zero" ckpt verify run/checkpoints
    if [[ $transport == one ]]; then
        [[ $(weights_of --resume) == "$one" ]] || fail "$what: it goes on to $(weights), not to $one"
    else
        [[ $(weights_of --resume --ranks 2) == "$two" ]] || fail "$what: it goes on to $(weights), not to $two"
    fi
}

signals=(INT TERM HUP USR1 XCPU) transports=(one threads tcp mpirun)
port=$((20000 + RANDOM % 10000))
for ((run = 0; run < runs; run++)); do
    ((run % 2)) && export HEAP_STACK_ALARM_US=1000 || unset HEAP_STACK_ALARM_US
    interrupt "${transports[run % 4]}" "${signals[run / 4 % 5]}" $((1 + RANDOM % 20))
    ((port++))
done
echo "$runs runs from seed $seed"
finish
