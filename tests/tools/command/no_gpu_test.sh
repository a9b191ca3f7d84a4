#!/usr/bin/env bash
# Where a GPU is but cannot be used, the CPU computes, and one line says why; where there is none, or it is hidden, no line does. A
# configuration that asks for a GPU is refused.
library=$PWD/$2
source "$(dirname "$0")/lib.sh" "$1"
if [[ -e /dev/nvidiactl || -e /proc/driver/nvidia/version ]]; then
    echo "SKIPPED: this machine has an NVIDIA GPU"
    exit 0
fi
text 20 >text
config >c.json
preload=(env LD_PRELOAD="$library" ASAN_OPTIONS=verify_asan_link_order=0)
train() { expect "$1" "${@:2}" "$zero" train c.json --data text --steps 1 --run run --overwrite; }
why="device cuda: (this build has no CUDA|libcuda.so.1 cannot be loaded .*): (build|install) .*, or set device.type to \"cpu\""

train 0
! grep -q "NVIDIA" out err || fail "no GPU: $(grep NVIDIA out err)"
train 0 "${preload[@]}"
[[ $(grep -cE "computes on the CPU, not on this machine's NVIDIA GPU: $why" err) == 1 ]] || fail "does not say once why"
for list in "" -1 NoDevFiles; do
    train 0 "${preload[@]}" CUDA_VISIBLE_DEVICES=$list
    ! grep -q "NVIDIA" out err || fail "hidden by \"$list\": $(grep NVIDIA out err)"
done
train 0 "${preload[@]}" CUDA_VISIBLE_DEVICES=1,0
grep -q "NVIDIA" err || fail "does not say that the GPUs of a list are not used"
config 3 ', "device": {"type": "cpu"}' >c.json
train 0 "${preload[@]}"
! grep -q "NVIDIA" out err || fail "a CPU was asked for: $(grep NVIDIA out err)"
config 3 ', "device": {"type": "cuda"}' >c.json
train 1
grep -qE "$why" err || fail "does not say why there is no GPU"
finish
