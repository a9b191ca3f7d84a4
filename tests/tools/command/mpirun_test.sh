#!/usr/bin/env bash
# Ranks as processes that mpirun starts train to the same weights as ranks as threads.
source "$(dirname "$0")/lib.sh" "$1"
text >text
config >c.json
# Open MPI leaks at exit.
mpi() { ASAN_OPTIONS=detect_leaks=0 mpirun --bind-to none --oversubscribe -np "$@"; }

expect 0 "$zero" train c.json --ranks 2 --data text --steps 5 --run threads --quiet
threads=$(weights)
expect 0 mpi 2 "$zero" train c.json --data text --steps 5 --run processes
[[ $(weights) == "$threads" ]] || fail "as processes $(weights), as threads $threads"
[[ $(wc -l <processes/metrics.jsonl) == 5 ]] || fail "metrics.jsonl has $(wc -l <processes/metrics.jsonl) lines"
grep -q $'\e' out && fail "a live line went to a file"
[[ $(grep -c '^step 1/5' out) == 1 ]] || fail "$(grep -c '^step 1/5' out) ranks spoke"

# Other stages and numbers of ranks, with sizes that nothing divides.
for stage in 0 3; do
    for ranks in 2 3; do
        odd_config "$stage" ', "gradient_accumulation_steps": 2' >c.json
        expect 0 "$zero" train c.json --ranks "$ranks" --data text --steps 3 --run threads --overwrite --quiet
        threads=$(weights)
        expect 0 mpi "$ranks" "$zero" train c.json --data text --steps 3 --run processes --overwrite --quiet
        [[ -n $threads && $(weights) == "$threads" ]] ||
            fail "stage $stage, $ranks ranks: as processes $(weights), as threads $threads"
    done
done

# Hosts that hold other files: here, each rank's directory.
mkdir 0 1 && cp text 0 && text 100 >1/text
expect 1 mpi 2 bash -c 'cd "$OMPI_COMM_WORLD_RANK" && exec "$0" train ../c.json --data text --steps 2 --run run' "$zero"
says err "rank 1 has other files than rank 0: 1 files with 5290 tokens, rank 0 1 with 10690"
mkdir 0/model 1/model && touch 1/model/pytorch_model.bin
echo '{"model_type": "gpt2", "vocab_size": 256, "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 16}' | tee 0/model/config.json >1/model/config.json
expect 1 mpi 2 bash -c 'cd "$OMPI_COMM_WORLD_RANK" && exec "$0" train ../c.json --model model --data ../text --steps 1 --run run' "$zero"
says err "zero train: rank 1: model has its weights only in pytorch_model.bin"

expect 2 mpi 2 "$zero" train c.json --ranks 2 --data text && says err "--ranks makes threads"
expect 1 mpi 2 "$zero" train c.json --data missing && says err "cannot read missing"
[[ $(grep -c 'cannot read missing' err) == 1 ]] || fail "the missing file was named by several ranks"

# Without MPI's library (here, one that cannot be loaded) a rank of MPI says what is missing, and ranks over TCP train.
mkdir no_mpi && : >no_mpi/libmpi.so.40
without_mpi() { env LD_LIBRARY_PATH="$PWD/no_mpi" "$@"; }
expect 1 without_mpi OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 "$zero" train c.json --data text --steps 2
says err "install Open MPI (openmpi-bin), or start the ranks with torchrun's variables"
[[ $(wc -l <err) == 1 ]] || fail "more than a sentence"
mkdir other_mpi && gcc -shared -x c /dev/null -o other_mpi/libmpi.so.40
expect 1 env LD_LIBRARY_PATH="$PWD/other_mpi" OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 "$zero" train c.json --data text --steps 2
says err "libmpi.so.40 lacks MPI_Allreduce"

# Open MPI 5 needs HOME: a rank without it says so. (Its mpirun needs HOME, too.)
if mpirun --version | grep -q "Open MPI) 5"; then
    expect 1 mpi 2 env -u HOME "$zero" train c.json --data text --steps 2 --run homeless
    says err "Open MPI 5 does not start without the variable HOME"
else
    ASAN_OPTIONS=detect_leaks=0 expect 0 env -u HOME mpirun --bind-to none --oversubscribe -np 2 "$zero" train c.json --data text --steps 2 --run homeless
fi

export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000)) WORLD_SIZE=2
RANK=1 without_mpi "$zero" train c.json --data text --steps 3 --run tcp --quiet >other 2>&1 &
RANK=0 expect 0 without_mpi "$zero" train c.json --data text --steps 3 --run tcp --overwrite --quiet
tcp=$(weights)
wait $! || fail "rank 1: $(cat other)"
expect 0 env -u WORLD_SIZE "$zero" train c.json --ranks 2 --data text --steps 3 --run threads --overwrite --quiet
[[ -n $tcp && $(weights) == "$tcp" ]] || fail "over TCP $tcp, as threads $(weights)"
finish
