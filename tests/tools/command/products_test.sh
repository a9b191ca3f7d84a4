#!/usr/bin/env bash
# A GPU's products by algorithms that rank 0 chooses by time, over the stand-ins of tests/cuda: one choice on all ranks, kept for the
# next run, part of a run's identity. The stand-ins' proposals differ in bits, and FAKE_CUBLASLT_TIMES is their clock.
stand_ins=$PWD/tests/cuda
source "$(dirname "$0")/lib.sh" "$1"
export XDG_CACHE_HOME=$work/cache
text 20 >text
config 3 ', "device": {"type": "cuda"}' | sed 's/"n_layer": 2/"n_layer": 1/; s/"n_positions": 32/"n_positions": 8/' >c.json
second=5,3,4 third=5,4,3 # the proposal that is the fastest

# train TIMES OPTION...: its hash is in $hash
train() {
    FAKE_CUBLASLT_TIMES=$1 LD_LIBRARY_PATH=$stand_ins expect "${status:-0}" "$zero" train c.json --data text --steps "${steps:-2}" "${@:2}"
    hash=$(weights)
}
timed() { train "$1" --set device.products=timed "${@:2}"; }
is() { [[ -n $hash && $hash == "$1" ]] || fail "$2: $hash, not $1"; }
is_not() { [[ -n $hash && $hash != "$1" ]] || fail "$2: the bits are $1"; }
forget() { rm -rf cache; }

# Without the key the first proposal, whatever the clock says; nothing is timed and nothing kept.
train "$second" --ranks 2 --run first
first=$hash
grep -q "^products" out && fail "timed without the key"
[[ ! -e cache ]] && ! ls first/products-* 2>/dev/null || fail "a choice without the key"

# The fastest proposal, by rank 0's clock; the choice is kept, and the next run takes it although the clock has changed.
timed "$second" --ranks 2 --run timed
is_not "$first" "the second proposal"
of_second=$hash
says out "shapes were timed; the choice is kept in $work/cache/zero/products-"
says out ": remove it to choose anew"
timed "$third" --ranks 2 --run timed --overwrite --set zero_optimization.stage=0
is "$of_second" "a kept choice at another stage"
grep -q "were timed" out && fail "timed again"
forget
timed "$third" --ranks 2
is_not "$of_second" "the third proposal"
of_third=$hash

# A file that is damaged, or that others may write, counts as missing.
timed_anew() { # WHAT COMMAND...
    local file=(cache/zero/products-*) what=$1
    "${@:2}" "${file[0]}"
    timed "$clock" --ranks 2
    says out "were timed"
    is "$expected" "$what"
}
clock=$second expected=$of_second timed_anew "one digit is another" sed -i '$s/0$/1/'
clock=$third expected=$of_third timed_anew "cut" truncate -s -100
clock=$second expected=$of_second timed_anew "others may write it" chmod g+w
# Another library has a file of its own.
FAKE_CUBLASLT_VERSION=130100 timed "$third" --ranks 2
is "$of_third" "another library"
[[ $(echo cache/zero/products-* | wc -w) == 2 ]] || fail "two libraries, and these files: $(ls cache/zero)"
timed "$third" --ranks 2
is "$of_second" "the first library again"

# Processes: rank 0 chooses for all, whatever the others' clocks and files say; a rank that cannot use the choice says why.
over_tcp() { # TIMES_OF_RANK_0 TIMES_OF_RANK_1 [RANK_1'S ENVIRONMENT...]
    local port=$((20000 + RANDOM % 10000)) rank times=("$1" "$2") failed=0 other=() process
    shift 2
    for rank in 0 1; do
        ((rank)) && other=("$@")
        env RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port FAKE_CUBLASLT_TIMES="${times[rank]}" \
            XDG_CACHE_HOME="$work/cache$rank" LD_LIBRARY_PATH="$stand_ins" "${other[@]}" \
            "$zero" train c.json --data text --steps 2 --run processes --overwrite --set device.products=timed >"out.$rank" 2>&1 &
        process[rank]=$!
    done
    for rank in 0 1; do wait "${process[rank]}" || failed=$?; done
    cat out.0 out.1 >out
    hash=$(weights)
    return $failed
}
over_tcp "$second" "$third" || fail "over TCP"
is "$of_second" "rank 0's choice over TCP"
over_tcp "$second" "$third" FAKE_CUDA_CAPABILITY=8 && fail "another GPU took the choice"
says out "products were chosen on cuBLASLt 130000, driver 13000, " && says out "cannot multiply 16 x 96 x 32 in that way: give all ranks GPUs and libraries of one kind"
over_tcp "$second" "$third" FAKE_CUBLASLT_VERSION=130100 && fail "another library took the choice"
says out "and this rank has cuBLASLt 130100: give all ranks GPUs and libraries of one kind, or set device.products to \"first\""

# A run goes on with its own choice, though the kept one is lost and the clock says another.
steps=4 timed "$second"
whole=$hash
timed "$second" --run halves --save-every 2
forget
steps=4 timed "$third" --run halves --continue --save-every 2
is "$whole" "the second half"
# Where it cannot, that is another run: --continue says so, and --resume goes on.
forget
export FAKE_CUBLASLT_VERSION=130100
cp -r halves other
status=1 steps=6 timed "$third" --run other --continue --save-every 2
says err "was trained with other settings than this configuration: its products were chosen otherwise (device.products or device.attention is \"timed\")"
diff -r halves other >/dev/null || fail "a run that is refused loses its choice"
steps=6 timed "$third" --run other --resume
unset FAKE_CUBLASLT_VERSION
status=1 steps=6 train "$second" --run halves --continue --save-every 2
says err "its device.products is timed-"
# Another micro-batch has other shapes, and is the same run: an elastic one.
steps=6 timed "$third" --run halves --continue --save-every 2 --set train_micro_batch_size_per_gpu=1 --set train_batch_size=2
says out "resumed   after step 4"

# Attention's kernels, by rank 0's clock: kept, the same at every stage, part of the run's identity.
forget
attention() { # MICROSECONDS OPTION...: of the kernels of warpgroups, where the others take 100 in the forward, and 150 in the backward
    FAKE_CUDA_TIMES=flash_forward_64_bf16=100,warpgroup_forward_64_bf16=$1,flash_key_backward_64_bf16=150,warpgroup_backward_64_bf16=$1 train "$second" --set bf16.enabled=true \
        --set device.attention=timed --ranks 2 "${@:2}"
}
attention 50 --run attends --save-every 2
says out "attention  was timed; the choice is kept in $work/cache/zero/products-"
says out "attention  the forward is by warpgroups: "
says out "attention  the backward is by warpgroups: "
of_warpgroups=$hash
attention 200 --set zero_optimization.stage=0 # kept
is "$of_warpgroups" "warpgroups at another stage"
grep -q "was timed" out && fail "attention was timed again"
forget
steps=4 attention 200 --run attends --continue --save-every 2 # its own choice
says out "attention  the forward is by warpgroups"
says out "attention  the backward is by warpgroups"
status=1 steps=6 train "$second" --set bf16.enabled=true --ranks 2 --run attends --continue --save-every 2
says err "its device.products is timed-"
attention 120 --set device.products=timed
says out "shapes, and attention, were timed"
says out "attention  the forward is by mma.sync: "
says out "attention  the backward is by warpgroups: "
train "$second" --set device.attention=timed # in fp32
says out "attention  has one kind of kernels on this GPU; the choice is kept in "
says out "attention  the forward is by mma.sync"
status=1
FAKE_CUDA_TIMES=warpgroup_forward_64_bf16=idle train "$second" --set bf16.enabled=true --set device.attention=timed --ranks 2
says err "attention's kernels disagree: the forward by warpgroups"
status=0
finish
