#!/usr/bin/env bash
# Runs that a signal interrupts at a moment drawn from a seed, over one rank, threads, TCP and mpirun. Each ends by itself
# with the signal's exit status and a whole checkpoint, and goes on to the weights of a run that nobody interrupted. Products
# run with the stack pointer in the heap (heap_stack.c), as some of oneDNN's kernels do: a handler on a thread that computes
# would abort the run. Every other run also has a handler of a host's, every millisecond.
#   interrupted_test.sh ZERO LIBRARY [RUNS [SEED]]     RUNS: 20, in about 40 s; tools/soak makes 200
source "$(dirname "$0")/lib.sh" "$1"
library=$OLDPWD/$2 seed=${4:-1}
runs=${3:-$((short ? 4 : 20))} # one of each transport
port=$((20000 + RANDOM % 10000)) # before the seed: other tests run beside this one
text >text
config 3 ', "comm": {"timeout_s": 30}, "trace": {"steps": 0}' >c.json
steps=40 # of the runs to compare with
RANDOM=$seed

# Sanitizers want to be loaded first; their leaks are of Open MPI.
exposed() { LD_PRELOAD=$library ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0 exec "$@"; }

train=("$zero" train c.json --data text --save-every 1000000 --run run)
endless=("${train[@]}" --steps 1000000)
begin() { # TRANSPORT
    case $1 in
    one) exposed "${endless[@]}" >out 2>err & ;;
    threads) exposed "${endless[@]}" --ranks 2 >out 2>err & ;;
    tcp)
        WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port RANK=1 exposed "${endless[@]}" >out.1 2>err.1 &
        WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port RANK=0 exposed "${endless[@]}" >out 2>err &
        ;;
    mpirun)
        ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0 mpirun --bind-to none --oversubscribe -np 2 \
            -x LD_PRELOAD="$library" ${HEAP_STACK_ALARM_US+-x HEAP_STACK_ALARM_US} "${endless[@]}" >out 2>err &
        ;;
    esac
}
# The process numbers of the ranks, where each is a process.
ranks() { [[ $1 == mpirun ]] && pgrep -P "$launcher" -f "zero train" || jobs -p; }

# weights_of RANKS STEPS [OPTION...]
weights_of() { expect 0 "${train[@]}" --ranks "$1" --steps "${@:2}"; weights; }
# whole RANKS STEPS: the weights of a run that nobody interrupted
declare -A known
whole() {
    [[ -n ${known[$*]-} ]] || { rm -rf run && known[$*]=$(weights_of "$@"); }
}

interrupt() { # TRANSPORT SIGNAL AFTER: sent to one of its ranks after so many steps
    local transport=$1 signal=$2 after=$3 ranks=2 to=$steps pid status resumed expected=$((128 + $(kill -l "$2"))) what="$1, SIG$2 after $3 steps"
    rm -rf run out* err*
    begin "$transport"
    launcher=$!
    await has_steps run "$after"
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
    [[ -s run/checkpoints/latest ]] || fail "$what: no checkpoint"
    expect 0 "$zero" ckpt verify run/checkpoints
    # On a busy machine the signal may come many steps later.
    (($(steps_of run) < to)) || to=$(($(steps_of run) + 1))
    [[ $transport == one ]] && ranks=1
    resumed=$(weights_of $ranks $to --resume)
    whole $ranks $to
    [[ -n $resumed && $resumed == "${known[$ranks $to]}" ]] || fail "$what: it goes on to $resumed, not to ${known[$ranks $to]}"
}

signals=(INT TERM HUP USR1 XCPU) transports=(one threads tcp mpirun)
for ((run = 0; run < runs; run++)); do
    ((run % 2)) && export HEAP_STACK_ALARM_US=1000 || unset HEAP_STACK_ALARM_US
    interrupt "${transports[run % 4]}" "${signals[run / 4 % 5]}" $((1 + RANDOM % 20))
    ((port++))
done
echo "$runs runs from seed $seed"
finish
