#!/usr/bin/env bash
# A stage, tiers and a micro-batch that choose themselves: what is chosen, how it is kept, and what it is chosen for.
source "$(dirname "$0")/lib.sh" "$1"
export XDG_CACHE_HOME=$work/cache
text >text
# A described machine: rank for rank the same choice on every machine.
cat >desk.json <<'END'
{"devices": {"desk": {"memory": 4e9, "memory_per_s": 1e10, "fp32_flops": 5e10, "is_host": true, "shares_cores": true, "host": "desk",
   "inside": "desk", "between": "desk", "drive": "desk"}},
 "hosts": {"desk": {"memory": 8e9, "memory_per_s": 2e10, "devices": 4, "device_per_s": 1e10}},
 "links": {"desk": {"per_s": 4e9, "reduce_per_s": 4e9, "latency_s": 1e-6}},
 "drives": {"desk": {"bytes": 1e11, "read_per_s": 2e9, "write_per_s": 2e9}}}
END
# open_config [EXTRA]: all is left to the planner; the drive is there.
open_config() {
    config '"auto", "offload_optimizer": {"device": "auto", "nvme_path": "swap"}' "${1-}" |
        sed 's/"train_micro_batch_size_per_gpu": 2/"train_batch_size": 8, "train_micro_batch_size_per_gpu": "auto"/'
}
train() { "$zero" train "${config:-auto.json}" --data text --steps 3 "$@"; }
open_config >auto.json

# On one rank and on two: the run's config.json trains to the same hash by itself, and so do other stages.
for ranks in 1 2; do
    expect 0 train --hardware desk.json --ranks $ranks --run run$ranks
    says out "chosen    stage $((ranks - 1)) without offload, micro-batch $((8 / ranks)):" && says out "          not stage"
    [[ $(grep -c '^ *not stage .*: \(slower by [0-9]* %\|as fast\|.* short on .*\)$' out) == 3 ]] || fail "three rows follow"
    says out "the weights' bits depend on the micro-batch" && says out "on $ranks rank"
    hash=$(weights)
    config=run$ranks/config.json expect 0 train --ranks $ranks --run again$ranks
    [[ -n $hash && $(weights) == "$hash" ]] || fail "$ranks ranks: the written configuration gives $(weights), not $hash"
    grep -q '^chosen' out && fail "a configuration without auto was chosen"
    [[ ! -e again$ranks/config.json ]] || fail "a run without auto writes config.json"
    for other in 2 3; do
        config=run$ranks/config.json expect 0 train --ranks $ranks --set zero_optimization.stage=$other
        [[ $(weights) == "$hash" ]] || fail "$ranks ranks: stage $other gives $(weights), not $hash"
    done
    # zero plan has the same answer, to the byte.
    expect 0 "$zero" plan auto.json --hardware desk.json --ranks $ranks --threads 1 --write-config plan$ranks.json
    says out "Take stage $((ranks - 1))" && says out "grads  micro"
    cmp plan$ranks.json run$ranks/config.json || fail "zero plan writes another configuration"
done
# Where little memory is left, state and parameters go to the drive; the hash stays, if the micro-batch does.
deep() { sed 's/"n_layer": 2/"n_layer": 16/; s/"train_micro_batch_size_per_gpu": "auto"/"train_micro_batch_size_per_gpu": 4/' auto.json; }
deep >deep.json
config=deep.json expect 0 train --hardware desk.json --ranks 2
deepest=$(weights)
bytes() { # TIER: of the row with all on the drive
    "$zero" plan deep.json --hardware desk.json --ranks 2 --json |
        sed -nE "s/.*\"stage\": 3, \"offload_optimizer\": \"nvme\", \"offload_param\": \"nvme\", .*\"offload_gradients\": \"nvme\".*\"$1_bytes\": ([0-9]+).*/\1/p"
}
sed "s/\"seed\": 3/\"seed\": 3, \"memory\": {\"device\": $(bytes device), \"cpu\": $(bytes cpu)}/" deep.json >tight.json
config=tight.json expect 0 train --hardware desk.json --ranks 2 --run tight
says out "chosen    stage 3 with state and parameters on the drive" && says out "short on"
[[ -n $deepest && $(weights) == "$deepest" ]] || fail "on the drive: $(weights), not $deepest"
# Nothing fits: one sentence, with what the nearest row lacks.
sed 's/"seed": 3/"seed": 3, "memory": {"device": 1000}/' auto.json >none.json
config=none.json expect 1 train --hardware desk.json --ranks 2
says err '"auto": Nothing fits' && says err "short of" && says err "on the device"
[[ $(wc -l <err) == 1 ]] || fail "more than one sentence: $(cat err)"

# A run that goes on keeps its choice; on other ranks it is made anew. A file that is no run's stays.
expect 0 train --hardware desk.json --ranks 2 --run kept --save-every 3
cp kept/config.json before
sed -i 's/"device": 4e9\|"memory": 4e9/"memory": 1000/' desk.json # nothing fits that machine: it is not asked
for how in --resume --continue; do
    expect 0 train --hardware desk.json --ranks 2 --run kept --save-every 3 --steps 5 $how
    says out "chosen    as in the earlier part of this run"
    cmp kept/config.json before || fail "$how changed the choice"
done
# Its config.json is a run's, and not a model's of another program.
expect 0 "$zero" eval kept --data text && cp out before && expect 0 "$zero" eval kept/checkpoints --data text
[[ $(grep ^loss out) == "$(grep ^loss before)" ]] || fail "another loss of the run than of its checkpoint"
expect 0 "$zero" sample kept --tokens 5
sed -i 's/"memory": 1000/"memory": 4e9/' desk.json
expect 0 train --hardware desk.json --ranks 1 --run kept --resume --steps 6 --save-every 1
says out "chosen    anew: the earlier part of this run was on 2 ranks" && says kept/config.json '"ranks": 1'
# What another key decides may need the model: two blocks of one checkpoint.
mkdir model && echo '{"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32, "vocab_size": 256}' >model/config.json
config '"auto"' | sed '/"model"/d; s/"seed": 3,/"seed": 3, "activation_checkpointing": {"number_checkpoints": 1}}/' >bare.json
config=bare.json expect 0 train --hardware desk.json --model model --random --run bare --save-every 3
config=bare.json expect 0 train --hardware desk.json --model model --run bare --save-every 3 --steps 5 --resume
says out "chosen    as in the earlier part of this run"
# A run that begins anew and chooses nothing leaves no earlier choice there, but its own configuration.
config=kept/config.json expect 0 train --run kept --overwrite && [[ -e kept/config.json ]] || fail "the run's own configuration is gone"
config >zero3.json
config=zero3.json expect 0 train --run kept --overwrite && [[ ! -e kept/config.json ]] || fail "the earlier choice is still there"
mkdir own && cp auto.json own/config.json
config=own/config.json expect 1 train --hardware desk.json --run own
says err "own/config.json has contents that no run writes there" && cmp own/config.json auto.json || fail "the user's file was replaced"
config=zero3.json expect 0 train --run own && cmp own/config.json auto.json || fail "the user's file is gone"
# The refusal leaves the run that is there as it was.
cp own/identity own/metrics.jsonl .
expect 1 train --hardware desk.json --run own --overwrite
says err "own/config.json has contents that no run writes there"
cmp own/identity identity && cmp own/metrics.jsonl metrics.jsonl || fail "a start that was refused changed the run"
# A path with all that JSON escapes, which is measured.
mkdir 'a "b\c"'
open_config | sed 's|"swap"|"a \\"b\\\\c\\""|' >escaped.json
((short)) || config=escaped.json expect 0 train --run escaped

# Processes: rank 0 chooses, and tells all, over MPI and TCP; their link is measured, where no machine is described.
threads=$(cat run2/config.json)
processes() { # OPTION...
    ASAN_OPTIONS=detect_leaks=0 expect "${status:-0}" mpirun --bind-to none --oversubscribe -np 2 "$zero" train "${config:-auto.json}" --data text --steps 3 "$@"
}
processes --hardware desk.json --run mpi
[[ $(weights) == "$hash" && $(cat mpi/config.json) == "$threads" ]] || fail "over MPI: $(weights), not $hash"
status=2 processes --hardware none.file
[[ $(grep -c "none.file: cannot be opened" err) == 1 ]] || fail "every rank speaks: $(cat err)"
# Checkpoints are on a drive of their own, which is measured, too. In a short run plan_test alone measures one: it takes long.
checkpoints=', "activation_checkpointing": {"interval": "auto", "nvme_checkpointing": true, "nvme_path": "checkpoints"}'
config '"auto"' "$( ((short)) || echo "$checkpoints")" >drive.json
config=drive.json processes --run measured && says out "measuring this machine once" && [[ $(weights) ]] || fail "measured over MPI: $(cat err)"
over_tcp() {
    local port=$((20000 + RANDOM % 12000)) rank process
    for rank in 0 1; do
        RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            "$zero" train auto.json --data text --steps 3 "$@" >out.$rank 2>err.$rank &
        process[rank]=$!
    done
    wait "${process[0]}" && wait "${process[1]}" || fail "over TCP: $(cat err.0 err.1)"
    cp out.0 out
}
over_tcp --hardware desk.json --run tcp
[[ $(weights) == "$hash" ]] || fail "over TCP: $(weights), not $hash"

# This machine is measured once. What is damaged, or not the user's own, is measured anew.
sed 's/"offload_optimizer": {"device": "auto", "nvme_path": "swap"}/"offload_optimizer": "auto"/' auto.json >here.json
rm -rf cache
measures() { # EXPECTED WHY
    config=here.json expect 0 train --run here --overwrite
    [[ $(grep -c "measuring this machine once" out) == "$1" ]] || fail "$2: measured $(grep -c measuring out) times"
}
measures 1 "first" && says out "kept in $work/cache/zero/machine-"
measures 0 "again"
file=$(echo cache/zero/machine-*)
[[ $(stat -c %a "$file") == 600 && $(stat -c %a cache/zero) == 700 ]] || fail "modes: $(stat -c %a "$file" cache/zero)"
says "$file" "zero machine 1 "
sed -i 's/"memory_per_s": \([0-9]\)/"memory_per_s": 9\1/' "$file" && measures 1 "damaged" && measures 0 "mended"
chmod 666 "$file" && measures 1 "others may write it"
if ((!short)); then
    sed -i '1s/machine 1/machine 2/' "$file" && measures 1 "another version"
    : >"$file" && measures 1 "empty"
fi
expect 0 "$zero" plan here.json --ranks 1 --write-config here.plan.json
says out "1 ranks on 1 node: here" && cmp here.plan.json here/config.json || fail "zero plan has another answer for this machine"
XDG_CACHE_HOME=/proc measures 1 "no cache" && says out "not kept, so that the next run measures too"

# Commands that cannot ask the planner refuse "auto". Options that need "auto" say so.
for refused in "config auto.json" "sim auto.json --ranks 2"; do
    expect 2 "$zero" $refused && says err 'zero_optimization.stage: "auto" is chosen by `zero train`, or by `zero plan CONFIG.json --write-config FILE`'
done
expect 2 "$zero" plan auto.json --hardware desk.json --largest && says err "--largest plans a configuration without \"auto\""
config=zero3.json expect 0 train --hardware desk.json --run described && says out "50.0 GFLOP/s in fp32, stated for desk" # for MFU alone
config=zero3.json expect 2 train --hardware missing.json && says err "missing.json: cannot be opened"
expect 2 train --gpu h100-80g && says err "h100-80g is a GPU, and this run computes on the CPU"
expect 2 train --gpu h100 && says err '"h100" is none of the devices'
finish
