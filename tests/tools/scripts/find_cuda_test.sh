#!/usr/bin/env bash
# The toolkits that a build takes: in the layouts of CUDA 12, CUDA 13 and conda, and around a link to nvcc; none needs the headers of NCCL
# or cuDNN. Where a part is missing, one line says which.
#   find_cuda_test.sh FIND_CUDA
set -uo pipefail
cd "$TEST_TMPDIR" || exit 1
sed "s|/usr/local/cuda|$PWD/default|" "$OLDPWD/$1" >find_cuda
failures=0
fail() { failures=$((failures + 1)) && echo "FAILED: $*" >&2; }

toolkit() { # NAME VERSION HEADERS CCCL
    local root=$PWD/$1 headers=$PWD/$1/$3
    mkdir -p "$root/bin" "$headers/crt" "$headers/$4/nv"
    printf '#!/bin/sh\necho "#$ TOP=%s/bin/.." >&2\n' "$root" >"$root/bin/nvcc" && chmod +x "$root/bin/nvcc"
    echo "#define CUDA_VERSION $2" >"$headers/cuda.h"
    touch "$headers"/{cuda_runtime.h,crt/host_config.h,cublasLt.h,"$4"/nv/target}
}
find_with() { CUDA_HOME=$1 PATH=${2-}:/usr/bin:/bin bash find_cuda 2>err | paste -sd' '; } # CUDA_HOME [FOLDER-OF-NVCC]
finds() { # ROOT HEADERS VERSION CUDA_HOME [FOLDER-OF-NVCC]
    local said
    said=$(find_with "${@:4}")
    [[ $said == "$1/bin/nvcc $2 $3" && ! -s err ]] || fail "CUDA_HOME=$4, nvcc in ${5-}: $said $(<err), expected $1 with $2 of $3"
}
lacks() { # WHAT CUDA_HOME
    local said
    said=$(find_with "${@:2}")
    [[ ! $said && $(wc -l <err) == 1 && $(<err) == "CUDA at ${2:-$PWD/default} lacks $1, so the build computes on CPUs alone: install "* ]] ||
        fail "CUDA_HOME=$2 lacks $1: $said $(<err)"
}

toolkit twelve 12080 include .
toolkit conda 12090 targets/sbsa-linux/include .
toolkit thirteen 13000 targets/x86_64-linux/include cccl
ln -s targets/x86_64-linux/include thirteen/include
mkdir linked && ln -s "$PWD/thirteen/bin/nvcc" linked/nvcc
finds "$PWD/twelve" "$PWD/twelve/include" 12080 "$PWD/twelve"
finds "$PWD/conda" "$PWD/conda/targets/sbsa-linux/include" 12090 "$PWD/conda"
finds "$PWD/thirteen" "$PWD/thirteen/include" 13000 "$PWD/thirteen"
finds "$PWD/thirteen/bin/.." "$PWD/thirteen/bin/../include" 13000 "" "$PWD/linked"

# No toolkit is no reason to speak. A part of one is, unless there is a whole one elsewhere.
said=$(find_with /none && find_with "")
[[ ! $said && ! -s err ]] || fail "without CUDA: $said $(<err)"
toolkit part 13000 include cccl && rm part/include/cublasLt.h
lacks cublasLt.h "$PWD/part"
rm part/bin/nvcc && lacks "bin/nvcc, cublasLt.h" "$PWD/part"
rm part/include/cccl/nv/target && lacks "bin/nvcc, nv/target, cublasLt.h" "$PWD/part"
toolkit old 12040 include . && lacks "CUDA 12.8 or later (it is 12.4)" "$PWD/old"
mv part default && lacks "bin/nvcc, nv/target, cublasLt.h" ""
finds "$PWD/thirteen/bin/.." "$PWD/thirteen/bin/../include" 13000 "" "$PWD/linked"
((failures == 0))
