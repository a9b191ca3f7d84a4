#!/usr/bin/env bash
# Training on a GPU as a user sees it, over the stand-ins of tests/cuda: one hash at all stages, with CUDA graphs and without, the
# CPU's losses, fp16, and the CPU where there is no GPU.
stand_ins=$PWD/tests/cuda
source "$(dirname "$0")/lib.sh" "$1"
text 20 >text

graphs=true optimizer=AdamW
write() { # DEVICE STAGE EXTRA
    config "$2" ", \"device\": {\"type\": \"$1\", \"graphs\": $graphs}$3" | sed 's/"n_layer": 2/"n_layer": 1/; s/"n_positions": 32/"n_positions": 12/; s/"AdamW", "params"/"'"$optimizer"'", "params"/' >c.json
}
train() { # DEVICE STAGE EXTRA OPTION...
    write "$1" "$2" "$3"
    expect "${status:-0}" "$zero" train c.json --data text --steps 2 --run run --overwrite "${@:4}"
}
on_gpu() { LD_LIBRARY_PATH=$stand_ins train "$@"; }
losses() { sed -E 's/.*"loss": ([^,}]*).*/\1/' run/metrics.jsonl; }
kept() { sed -nE 's/^outputs +kept for the backward: of norms in ([0-9]+) of 1 blocks, of activations in ([0-9]+)$/\1 \2/p' out; }
device_bytes() { # [RUN]
    python3 -c 'import json, sys; print(sum(r["planned"] for r in json.load(open(sys.argv[1]))["memory"] if r["tier"] == "device"))' "${1-run}/run.json"
}
near() { # EXPECTED TOLERANCE
    paste <(echo "$1") <(losses) | awk -v most="$2" '{d = $1 - $2; if (d * d > most * most) exit 1}' ||
        fail "losses $(losses | tr '\n' ' ')are not $(echo "$1" | tr '\n' ' ')within $2"
}

train cpu 0 "" --ranks 2
! grep -q "^slow " out || fail "the CPU is slow: $(cat out)"
expected=$(losses) hash=""
for stage in 0 1 2 3; do
    on_gpu cuda "$stage" "" --ranks 2
    hash=${hash:-$(weights)}
    [[ -n $hash && $(weights) == "$hash" ]] || fail "stage $stage: $(weights), at stage 0 $hash"
    near "$expected" 1e-4
    (($(grep -c "^slow      attention in fp32 uses no tensor cores" out) == 1)) || fail "not once what is slow: $(cat out)"
done

# MFU, where the GPU's name is one that is described; a card on PCIe has another peak than the module.
! grep -q "^peak " out || fail "an emulated device has a peak: $(cat out)"
FAKE_CUDA_NAME="NVIDIA H200" on_gpu cuda 0 "" --ranks 2 && says out "peak      67.0 TFLOP/s in fp32, stated for h200: MFU" && says run/metrics.jsonl '"mfu": '
FAKE_CUDA_NAME="NVIDIA GeForce RTX 4090" on_gpu cuda 0 "" && says out "stated for rtx4090"
FAKE_CUDA_NAME="NVIDIA H100 PCIe" on_gpu cuda 0 "" && ! grep -q "^peak " out || fail "a PCIe card has the module's peak"

# What is "auto" is chosen for a GPU that is described, because only CPUs are measured.
on_gpu cuda '"auto"' "" --ranks 2 --gpu h100-80g
says out "chosen    stage" && says out "2 ranks of h100-80g"
[[ $(weights) == "$hash" ]] || fail "chosen: $(weights), at stage 0 $hash"
status=2 on_gpu cuda '"auto"' "" --ranks 2 && says err "only CPUs are measured: give --gpu NAME"
status=2 on_gpu cuda '"auto"' "" --gpu cpu && says err "cpu is a CPU, and this run computes on a GPU"

# Ranks that are processes with a GPU each: NCCL between them, whose ids go over TCP or MPI; the same hash.
small() { # STAGE
    config "$1" ', "device": {"type": "cuda"}' | sed 's/"n_layer": 2/"n_layer": 1/; s/"n_positions": 32/"n_positions": 12/' >c.json
}
memory=(1073741824 1073741824) # of the ranks' GPUs
over_tcp() {
    local port=$((20000 + RANDOM % 10000)) rank process
    for rank in 0 1; do
        RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port FAKE_CUDA_SEED=$((rank + 1)) FAKE_CUDA_MEMORY=${memory[rank]} "$@" >"out.$rank" 2>&1 &
        process[rank]=$!
    done
    wait "${process[0]}" && wait "${process[1]}" || fail "over TCP: $(cat out.0 out.1)"
    cp out.0 out
}
over_mpi() { ASAN_OPTIONS=detect_leaks=0 mpirun --bind-to none --oversubscribe -np 2 "$@" >out 2>&1 || fail "over MPI: $(cat out)"; }
# In a short run, each way at one stage.
for way in over_tcp over_mpi; do
    for stage in 0 3; do
        ((short)) && [[ $way$stage == over_tcp3 || $way$stage == over_mpi0 ]] && continue
        small "$stage"
        "$way" env LD_LIBRARY_PATH="$stand_ins" "$zero" train c.json --data text --steps 2 --run processes --overwrite
        grep -q "2 ranks.*nccl" out || fail "$way, stage $stage is not over NCCL: $(cat out)"
        [[ $(weights) == "$hash" ]] || fail "$way, stage $stage: $(weights), threads $hash"
    done
done

# Where one rank's GPU has no room for outputs, no rank keeps them.
[[ $(kept) == "1 1" ]] || fail "processes keep outputs of $(kept)"
small 3
sed -i 's/"device": {"type": "cuda"}/&, "memory": {"device_margin": 0}/' c.json
memory[1]=$(($(device_bytes processes) + (1 << 20))) # a twentieth stays free, which is more
over_tcp env LD_LIBRARY_PATH="$stand_ins" "$zero" train c.json --data text --steps 2 --run processes --overwrite
[[ $(kept) == "0 0" ]] || fail "rank 1 has no room, and outputs of $(kept) are kept"
[[ $(weights) == "$hash" ]] || fail "without room for outputs: $(weights), threads $hash"

# The work of a unit is a CUDA graph where it recurs, in the second step, unless it is not wanted.
launched() { sed -E 's/.* graphs //' counts; }
export FAKE_CUDA_COUNTS=counts
on_gpu cuda 0 "" --ranks 2
(($(launched) > 0)) || fail "no graph was launched: $(cat counts)"
graphs=false
on_gpu cuda 3 ""
grep -q "late loads 0 " counts || fail "kernels are loaded late: $(cat counts)"
on_gpu cuda 0 "" --ranks 2
[[ $(launched) == 0 && $(weights) == "$hash" ]] || fail "device.graphs false: $(cat counts), $(weights), with graphs $hash"
graphs=true

# Outputs of norms and activations are kept as far as the plan leaves room: to the byte of memory.device, on all ranks alike, as zero plan
# says. No bit changes. In a short run, with each number of outputs once.
memory[1]=${memory[0]}
keeps() { # NORMS ACTIVATIONS BUDGET OPTION...
    write cuda 3 ", \"memory\": {\"device\": $3}"
    over_tcp env LD_LIBRARY_PATH="$stand_ins" "$zero" train c.json --data text --steps 2 --run processes --overwrite "${@:4}"
    [[ $(kept) == "$1 $2" ]] || fail "keeps outputs of norms and activations of $(kept) blocks, not $1 $2: $3 ${*:4}"
    [[ $(weights) == "$hash" ]] || fail "$(weights), without outputs that are kept $hash: $3 ${*:4}"
    (($# > 3)) && return
    expect 0 "$zero" plan c.json --gpu h100-80g --ranks 2 --json
    row=$(grep '"stage": 3, "offload_optimizer": "none", "offload_param": "none", "recompute": false' out)
    [[ $row == *"\"kept_norm_blocks\": $1, \"kept_activation_blocks\": $2, "*"\"device_bytes\": $(device_bytes processes), "* ]] ||
        fail "zero train keeps $1 $2 and has $(device_bytes processes) bytes on the device, zero plan: $row"
}
if ((!short)); then
    keeps 0 0 '"unlimited"' --set device.keep_outputs=false
    keeps 1 1 '"unlimited"' --set device.keep_outputs=true
fi
keeps 1 1 '"unlimited"'
expect 0 "$zero" plan c.json --gpu h100-80g --ranks 2
says out "It has room to keep outputs for the backward: of norms in 1 of 1 blocks, of activations in 1, "
all=$(device_bytes processes)
((short)) || keeps 1 1 "$all"
keeps 1 0 $((all - 1))
norms=$(device_bytes processes)
((short)) || keeps 1 0 "$norms"
keeps 0 0 $((norms - 1))

# A block that runs again keeps its attention and its MLP in the room that is left: the same hash, and the bytes of zero plan.
write cuda 3 ', "activation_checkpointing": {"interval": 1}'
sed -i 's/"n_layer": 1/"n_layer": 2/' c.json
for kept in false '"auto"'; do
    expect 0 env LD_LIBRARY_PATH="$stand_ins" "$zero" train c.json --data text --steps 2 --run run --overwrite --set "device.keep_outputs=$kept"
    [[ $kept == false ]] && again=$(weights)
done
[[ -n $again && $(weights) == "$again" ]] || fail "$(weights), where every block runs again $again"
says out "attention in 1 recomputed blocks, MLPs in 1: their parts are not computed again"
expect 0 "$zero" plan c.json --gpu h100-80g --ranks 1 --json
row=$(grep '"stage": 3, "offload_optimizer": "none", "offload_param": "none", "recompute": true' out)
[[ $row == *'"kept_attention_blocks": 1, "kept_mlp_blocks": 1, '*"\"device_bytes\": $(device_bytes), "* ]] ||
    fail "zero train keeps a block and has $(device_bytes) bytes on the device, zero plan: $row"

# Muon and Lamb: one hash each, wherever the state is.
for optimizer in Muon Lamb; do
    matrices=', "param_groups": [{"match": ["*.bias", "*ln_*", "w?e.*"], "optimizer": "AdamW"}]' first=""
    train cpu 0 "$matrices" --ranks 2
    expected=$(losses)
    for stage in 0 '3, "offload_optimizer": {"device": "cpu"}'; do
        on_gpu cuda "$stage" "$matrices" --ranks 2
        first=${first:-$(weights)}
        [[ -n $first && $(weights) == "$first" ]] || fail "$optimizer, stage $stage: $(weights), at stage 0 $first"
        near "$expected" 1e-4
        grep -q "late loads 0 " counts || fail "$optimizer's kernels are loaded late: $(cat counts)"
    done
done
optimizer=AdamW
unset FAKE_CUDA_COUNTS

# Where no graph can be made the run goes on without them, and says so once.
one_rank() { on_gpu cuda 0 ""; weights; }
hash=$(one_rank)
[[ $hash ]] || fail "no hash"
[[ $(FAKE_CUDA_GRAPHS=2 one_rank) == "$hash" ]] || fail "with memory for two graphs: $(weights), for all $hash"
says err "recording a CUDA graph: out of memory (CUDA error 2): from now on all work is enqueued without CUDA graphs"
[[ $(grep -c "CUDA graph" err) == 1 ]] || fail "said more than once: $(cat err)"

train cpu 0 ""
expected=$(losses)
on_gpu auto 1 ', "bf16": {"enabled": true}'
! grep -q "^slow " out || fail "bf16 is slow: $(cat out)"
near "$expected" 0.03
hash=$(weights)
[[ $(kept) == "1 1" ]] || fail "in bf16 outputs of $(kept) are kept, not all"
on_gpu auto 1 ', "bf16": {"enabled": true}' --set device.keep_outputs=false
[[ $(weights) == "$hash" ]] || fail "bf16, device.keep_outputs false: $(weights), auto $hash"
on_gpu auto 1 ', "fp16": {"enabled": true, "initial_scale_power": 4}'
near "$expected" 0.01

# Where there is no GPU the CPU computes; where a driver does not start, a line says so, once.
FAKE_CUDA_DEVICES=0 on_gpu auto 1 ""
near "$expected" 1e-6
! grep -q "on the CPU" out err || fail "no GPU: $(grep "on the CPU" out err)"
FAKE_CUDA_INIT=3 on_gpu auto 1 "" --ranks 2
says err "computes on the CPU, not on this machine's NVIDIA GPU: device cuda: the NVIDIA driver does not start (initialization error)"
[[ $(grep -c "on the CPU" err) == 1 ]] || fail "said more than once: $(cat err)"
FAKE_CUDA_INIT=3 status=1 on_gpu cuda 1 "" && says err "the NVIDIA driver does not start (initialization error): look at nvidia-smi"
FAKE_CUDA_DEVICES=0 status=1 on_gpu cuda 1 "" && says err "the NVIDIA driver does not start (no CUDA-capable device is detected)"
finish
