#!/usr/bin/env bash
# Which ranks share, as a user sees it: groups under mpirun and as threads, one experiment going on in another mesh,
# what the log says, what is refused.
source "$(dirname "$0")/lib.sh" "$1"
text >text
mpi() { ASAN_OPTIONS=detect_leaks=0 mpirun --bind-to none --oversubscribe -np "$@"; }
train() { expect 0 "$zero" train c.json --data text --quiet "$@"; }

hsdp=', "mics_shard_size": 2' hpz=', "zero_hpz_partition_size": 2' kept=', "comm": {"reshard_after_forward": false}'

# hash NAME STAGE [EXTRA]: of 5 steps on 4 threads, and the same on 4 processes.
hash() {
    local name=$1
    odd_config "$2" "${3-}" >c.json
    train --ranks 4 --steps 5 --run "$name" --overwrite
    hash=$(weights)
    [[ -n $hash ]] || fail "$name: no hash"
    [[ $name == plain ]] && return
    expect 0 mpi 4 "$zero" train c.json --data text --steps 5 --run "$name-mpi" --overwrite --quiet
    [[ $(weights) == "$hash" ]] || fail "$name: as processes $(weights), as threads $hash"
}
hash plain 3 && plain=$hash
hash hpz "3$hpz" && [[ $hash == "$plain" ]] || fail "hpZ ends in $hash, plain in $plain"
hash kept 3 "$kept" && [[ $hash == "$plain" ]] || fail "kept ends in $hash, plain in $plain"
hash hsdp "3$hsdp" && groups=$hash
[[ $groups != "$plain" ]] || fail "HSDP adds in the order of plain sharding"
hash hsdp1 "1$hsdp" && [[ $hash == "$groups" ]] || fail "HSDP at stage 1 ends in $hash, at stage 3 in $groups"

zeropp="$hpz, \"zero_quantized_weights\": true, \"zero_quantized_gradients\": true"
hash zeropp "3$zeropp" && [[ $hash != "$plain" ]] || fail "codes of 4 and 8 bits end in the exact hash"

# A run that stopped goes on in the same mesh to the same end, and in another one at all.
odd_config "3$hsdp" >c.json
train --ranks 4 --steps 3 --run saved --save-every 3
train --ranks 4 --steps 5 --run saved --resume
[[ $(weights) == "$groups" ]] || fail "after a save and a load $(weights), without $groups"
odd_config "3$hpz" >c.json
train --ranks 4 --steps 6 --run saved --resume 3
train --ranks 4 --steps 3 --run saved2 --save-every 3
odd_config 0 >c.json
train --ranks 2 --steps 6 --run saved2 --resume 3

# What is said.
odd_config "3$hsdp" ', "comm": {"node_ranks": 1}' >c.json
expect 0 "$zero" train c.json --data text --ranks 4 --steps 1 --run said
cat err >>out
says out "ranks share in 2 groups of 2"
says out "cross from one node to another"
odd_config '3, "mics_shard_size": "auto"' ', "comm": {"node_ranks": 2}' >c.json
expect 0 "$zero" train c.json --data text --ranks 4 --steps 1 --run said --overwrite
cat err >>out
says out "ranks share in 2 groups of 2"
grep -q "reach over" out && fail "groups of a node's ranks reach over it"
odd_config "3$zeropp" >c.json
expect 0 "$zero" train c.json --data text --ranks 2 --steps 1 --run said --overwrite
cat err >>out
says out "inexact by request (zero_quantized_weights): parameters are gathered in blockwise int8"
says out "inexact by request (zero_quantized_gradients): gradients are reduced in blockwise int4"
odd_config '3, "zero_quantized_weights": "fp8_e4m3"' \
    ', "param_groups": [{"match": "w?e.*", "zero_quantized_weights": false}, {"match": "*.mlp.*", "zero_quantized_weights": "int4"}]' >c.json
expect 0 "$zero" train c.json --data text --ranks 2 --steps 1 --run said --overwrite
cat err >>out
says out "inexact by request (zero_quantized_weights): parameters are gathered in blockwise fp8_e4m3"
says out "param_groups[0]: its parameters are gathered as they are"
says out "inexact by request (param_groups[1].zero_quantized_weights): its parameters are gathered in blockwise int4"
odd_config '3, "stage3_max_live_parameters": 7' >c.json
expect 0 "$zero" train c.json --data text --ranks 2 --steps 1 --run said --overwrite
cat err >>out
says out "elements are gathered at once, more than zero_optimization.stage3_max_live_parameters: a single unit needs that many"
odd_config "3$hsdp" >c.json
expect 2 "$zero" train c.json --data text --ranks 3 --steps 1 --run said
says err "zero_optimization.mics_shard_size: groups of 2 do not divide 3 ranks"
finish
