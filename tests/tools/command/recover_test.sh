#!/usr/bin/env bash
# With a shadow on the drive a killed run goes on from its last whole step, and ends with the weights of one that never
# stopped.
source "$(dirname "$0")/lib.sh" "$1"
text 400 >text
shadow() { # DIRECTORY [STAGE]
    config "${2:-3}" ", \"nvme\": {\"shadow\": true}, \"steps_per_print\": 1" |
        sed "s|\"stage\": ${2:-3}|&, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"$work/$1\"}|"
}

# killed STAGE: in the middle of many steps; then recovered, with fewer to go.
killed() {
    local had
    shadow "whole$1" "$1" >whole.json
    shadow "drive$1" "$1" >c.json
    "$zero" train c.json --data text --ranks 2 --steps 1000000 --run "run$1" >out 2>err &
    await has_steps "run$1" 5
    kill -KILL $! && wait $! 2>/dev/null
    had=$(wc -l <"run$1/metrics.jsonl")
    local to=$((had + 5))
    expect 0 "$zero" train c.json --data text --ranks 2 --steps $to --run "run$1" --recover
    local recovered begun
    recovered=$(weights)
    begun=$(sed -n 's/^resumed *after step \([0-9]*\),.*/\1/p' out)
    # The step before the one that the kill met is whole; its line may not have been written.
    ((begun >= had - 2 && begun <= had + 2)) || fail "stage $1: $had steps were told, it went on from $begun"
    [[ $(wc -l <"run$1/metrics.jsonl") == "$to" ]] || fail "stage $1: metrics.jsonl has not a line per step"
    expect 0 "$zero" train whole.json --data text --ranks 2 --steps $to --run "other$1"
    [[ $(weights) == "$recovered" ]] || fail "stage $1: recovered $recovered, never stopped $(weights)"
    cmp -s <(sed 's/"grad_norm".*//' "run$1/metrics.jsonl") <(sed 's/"grad_norm".*//' "other$1/metrics.jsonl") ||
        fail "stage $1: other losses than the run that never stopped"
}
killed 3
killed 1

# What cannot be recovered says so.
shadow never >never.json
expect 1 "$zero" train never.json --data text --steps 2 --run none --recover
says err 'nvme_path keeps no whole step of an earlier run'
config 3 >plain.json
expect 1 "$zero" train plain.json --data text --steps 2 --run none --recover
says err '"shadow": true'
expect 2 "$zero" train never.json --data text --steps 2 --recover
says err '--recover need --run DIR'
expect 2 "$zero" train never.json --data text --steps 2 --run none --recover --resume
says err 'drop one'
finish
