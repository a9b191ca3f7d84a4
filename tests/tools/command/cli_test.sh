#!/usr/bin/env bash
# The command line: help, versions, exit statuses, and one sentence for everything that can be wrong.
source "$(dirname "$0")/lib.sh" "$1"
text >text
config >good.json

expect 0 "$zero" --version
[[ $(head -n 1 out) =~ ^zero\ [0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "--version begins with $(head -n 1 out)"
for row in 'commit  ' 'compiler  *(gcc|clang) [0-9]' 'CUDA  *(none|[0-9]+\.[0-9]+)$' 'oneDNN  *[0-9.]+$' 'MPI  *Open MPI [0-9.]+$' \
    'processor  *scalar.* \(used\)'; do
    grep -qE "^$row" out || fail "--version lacks ${row%% *}"
done
expect 0 "$zero" help && says out "train" && says out "config"
expect 0 "$zero" help train && says out "--eval-every K"
expect 0 "$zero" train --help && says out "--ranks N"
expect 0 "$zero" config --help && says out "zero_optimization.stage"
# Each command, in both spellings.
mapfile -t commands < <("$zero" help | sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p')
((${#commands[@]} == 11)) || fail "the commands are ${commands[*]}"
for command in "" "${commands[@]}"; do
    for help in -h --help; do
        # shellcheck disable=SC2086 # no word, or one
        expect 0 "$zero" $command $help
        [[ -s out && ! -s err ]] || fail "zero $command $help prints on stderr, or nothing"
        [[ "$command $help" == "config --help" ]] || says out "usage: zero $command"
    done
done
expect 0 "$zero" config good.json --ranks 2 && says out "train_batch_size"

expect 2 "$zero" && says err "usage: zero COMMAND"
expect 2 "$zero" nope && says err '"nope" is not a command'
expect 2 "$zero" help nope && says err '"nope" is not a command'
expect 2 "$zero" trian && says err 'did you mean train?'
expect 2 "$zero" train && says err "CONFIG.json is missing"
expect 2 "$zero" train good.json --stepz 3 && says err "unknown option --stepz: did you mean --steps?"
expect 2 "$zero" train good.json --steps 0 && says err "--steps needs a whole number of at least 1"
expect 2 "$zero" train good.json --ranks 5000 && says err "at most 1024"
expect 2 "$zero" train good.json --steps=5 && says err "write --steps 5 in place of --steps=5"
expect 2 "$zero" config good.json --ranks 4294967297 && says err "more than the 65536 ranks"
expect 2 "$zero" train good.json --data text --eval-every 2 && says err "needs held-out data"
expect 2 "$zero" train missing.json && says err "missing.json"
config 3 ', "zero_optimisation": {}' >typo.json
expect 2 "$zero" train typo.json --data text && says err 'did you mean "zero_optimization"'
config 3 ', "train_batch_size": 5' >batch.json
expect 2 "$zero" train batch.json --data text --ranks 2 && says err "train_batch_size"
echo '{"train_micro_batch_size_per_gpu": 1}' >no-model.json
expect 2 "$zero" train no-model.json --data text && says err "no model block"
config 3 | sed 's/"vocab_size"/"layer_norm_epsilon": 0, "vocab_size"/' >epsilon.json
expect 2 "$zero" train epsilon.json --data text && says err "the norms' epsilon must be above 0"
config | sed 's/_per_gpu": 2/_per_gpu": 128/; s/"n_positions": 32/"n_positions": 16777216/' >big.json
expect 2 "$zero" train big.json --data text && says err "128 samples of 16777216 tokens is more than 2147483647 tokens"
[[ ! -e runs ]] || fail "a refused command left runs/ behind"

# Ranks that torchrun starts have a command line each: the one that is wrong says so. mpirun's have the same: rank 0 says it.
over_tcp() { WORLD_SIZE=3 RANK=$1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 "$zero" train good.json "${@:2}"; }
expect 2 over_tcp 2 --stepz 3 && says err "zero train: rank 2: unknown option --stepz: did you mean --steps?"
expect 2 over_tcp 1 --ranks 2 && says err "zero train: rank 1: --ranks makes threads"
expect 2 over_tcp 0 --ranks 2 && says err "zero train: --ranks makes threads"
under_mpi() { OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=$1 OMPI_COMM_WORLD_LOCAL_RANK=$1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "$zero" "${@:2}"; }
expect 2 under_mpi 0 train good.json --stepz 3 && says err "zero train: unknown option --stepz"
expect 2 under_mpi 1 train good.json --stepz 3
[[ ! -s err ]] || fail "under MPI rank 1 speaks, too"
# A command that takes one process does not print its result twice.
expect 2 under_mpi 0 eval nowhere --data text && says err "zero eval: mpirun started 2 processes"
expect 2 under_mpi 1 sample nowhere
[[ ! -s err ]] || fail "under MPI rank 1 samples, too"

expect 1 "$zero" train good.json && says err "nothing to train on"
expect 1 "$zero" train good.json --data missing && says err "cannot read missing: No such file"
head -c 20 text >short
expect 1 "$zero" train good.json --data short && says err "20 tokens, too few for one sample of 32"
expect 1 "$zero" train good.json --data text --steps 1 --run /dev/null/run && says err "/dev/null/run"
# Only what is written.
expect 0 "$zero" config good.json --changed --set seed=6
[[ $(wc -l <out) == $(($(grep -oE '"[a-z_0-9]+": *[^{ ]' good.json | wc -l) + 1)) ]] || fail "--changed prints $(wc -l <out) lines: $(cut -d' ' -f1 out | tr '\n' ' ')"
grep -q '^seed  *6  *command line' out || fail "no seed in --changed"

# A line of a step is whole in a file, with MFU where a peak is known, and fits a terminal.
echo '{"devices": {"mine": {"memory": 8e9, "memory_per_s": 1e12, "fp32_flops": 1e13, "host": "desktop", "inside": "pcie4"}}}' >peaks.json
columns=(train good.json --data text --steps 3 --run columns --set steps_per_print=1 --eval-every 1 --set data.eval=0.05 --overwrite)
expect 0 "$zero" "${columns[@]}" --hardware peaks.json && says out "peak      10.0 TFLOP/s in fp32, stated for mine"
grep -qE '^step 1/3  .*  [0-9,]+ tokens/s  MFU [0-9.e-]+%  mem [0-9.]+ MiB  [0-9]+s left' out || fail "a line of a step: $(grep '^step ' out | head -1)"
grep -q '"mfu": [0-9]' columns/metrics.jsonl || fail "no mfu in $(tail -1 columns/metrics.jsonl)"
expect 0 python3 -c 'import fcntl, os, pty, struct, sys, termios
def read(fd):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    return os.read(fd, 1024)
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:], read)))' sh -c 'sleep 0.2; exec "$@"' sh "$zero" "${columns[@]}"
tr -d '\r' <out | sed 's/.*\x1b\[K//' | grep '^step ' | awk 'length > 80 { bad = 1 } END { exit bad || NR < 3 }' || fail "lines of steps: $(grep '^step ' out)"
expect 0 "$zero" "${columns[@]}"
grep -q '"mfu"' columns/metrics.jsonl && fail "an mfu of an unknown peak"
grep -qE '^step 1/3  loss [0-9.]+  held out [0-9.]+  lr 0.01  norm [0-9.]+  [0-9,]+ tokens/s  mem [0-9.]+ MiB  ' out || fail "a line of a step: $(grep '^step ' out | head -1)"

# --set: a value for a key, in place of the file's or its "auto"; JSON, or a string.
sed 's/{"lr": 1e-2}/{"lr": "auto"}/' good.json >auto.json
expect 0 "$zero" config auto.json --set optimizer.params.lr=2e-4 --set zero_optimization.stage=1 --set optimizer.type=Lion \
    --set 'data.path=["a b"]' --set bf16.enabled=false --set seed=5 --set seed=6
grep -q '^optimizer.params.lr  *2e-4  *command' out || fail "lr: $(grep '^optimizer.params.lr' out)"
for line in 'zero_optimization.stage  *1 ' 'optimizer.type  *"Lion" ' 'seed  *6 ' 'data.path  *\[ "a b" \]'; do
    grep -q "^$line" out || fail "no line $line: $(grep "^${line%% *}" out)"
done
expect 0 "$zero" train auto.json --data text --steps 2 --run set --set optimizer.params.lr=0.25 --set steps_per_print=1
grep -q '"lr": 0.25' set/metrics.jsonl || fail "the engine does not know the setting: $(head -n 1 set/metrics.jsonl)"
says out "step 1/2"
sed 's/"AdamW"/"OneBitLamb"/' good.json >one_bit.json
expect 2 "$zero" config one_bit.json
expect 0 "$zero" config one_bit.json --set optimizer.type=AdamW # it mends the file
expect 2 "$zero" train good.json --data text --set zero_optimization.stag=1 && says err "zero_optimization.stag: unknown key: did you mean"
expect 2 "$zero" train good.json --data text --set stage && says err "write KEY=VALUE"
expect 2 "$zero" train good.json --data text --set && says err "--set needs a value"
expect 2 "$zero" config good.json --model m --set model.n_layer=3 && says err "--model takes the place of the model block"
expect 2 "$zero" config nowhere.json --set seed=1 && says err "nowhere.json"
# Names of files, keys and values reach no terminal raw.
hostile=$'a\e[31m\nQ\x7f\xc2\x9b2J'
mkdir "$hostile" && cp good.json "$hostile/c.json" && cp text "$hostile/text"
tame() { # STATUS COMMAND...
    expect "$@"
    ! LC_ALL=C grep -q -e $'\e' -e '^Q' -e $'\x7f' -e $'\xc2\x9b' out err || fail "raw: ${*:2}: $(cat -v out err)"
}
tame 2 "$zero" "$hostile"
tame 2 "$zero" config "$hostile"
tame 2 "$zero" ckpt export x y --dtype "$hostile"
tame 0 "$zero" config good.json --set "description=$hostile" --set "data.path=$hostile"
tame 0 "$zero" train "$hostile/c.json" --data "$hostile/text" --steps 2 --run "$hostile/run" --save-every 1
for command in "ckpt info" "ckpt verify" report; do tame 0 "$zero" $command "$hostile/run"; done
tame 0 "$zero" eval "$hostile/run" --data "$hostile/text"
tame 0 "$zero" ckpt export "$hostile/run" "$hostile/out"
tame 0 "$zero" ckpt import "$hostile/out" "$hostile/in"
tame 0 "$zero" io "$hostile" --mib 16 --ms 1
tame 1 "$zero" io "$hostile/none"
# Completion: all commands, the options of one, in both shells.
expect 0 "$zero" completion bash && cp out completion.bash
completed() { bash -c "source ./completion.bash; COMP_WORDS=($*); COMP_CWORD=$(($# - 1)); _zero; echo \${COMPREPLY[@]}"; }
[[ $(completed zero tr) == train && $(completed zero train --st) == --steps && $(completed zero eval --d) == --data ]] ||
    fail "bash completes: $(completed zero tr) $(completed zero train --st) $(completed zero eval --d)"
[[ -z $(completed zero train st) ]] || fail "bash completes an option where a file is meant"
expect 0 "$zero" completion zsh && says out "'train:" && says out "--steps[optimizer steps" && says out "#compdef zero"
! command -v zsh >/dev/null || zsh -n out || fail "zsh does not read its completion"
expect 2 "$zero" completion fish && says err "give bash or zsh"
finish
