#!/usr/bin/env bash
# Processes that were started with different options or data are refused before their first step.
source "$(dirname "$0")/lib.sh" "$1"
text >text
config >c.json
export ASAN_OPTIONS=detect_leaks=0 ZERO=$zero
as_ranks() { timeout 120 mpirun --bind-to none --oversubscribe -np 2 "$@"; }

# The same paths and sizes, other contents: here, each rank's directory.
mkdir 0 1 && cp text 0
sed 's/line 77/LINE 77/' text >1/text
expect 1 as_ranks bash -c 'cd "$OMPI_COMM_WORLD_RANK" && exec "$ZERO" train ../c.json --data text --steps 2 --run run'
says err "rank 1 has files of the same paths and sizes as rank 0, but of other contents"
[[ ! -e 0/run ]] || fail "a refused run left its directory"

# Options of which rank 1 has one more, or another value.
differ() { # WORDS OPTION...
    local words=$1
    shift
    expect 1 as_ranks bash -c '((OMPI_COMM_WORLD_RANK)) || set --; exec "$ZERO" train c.json --data text --steps 4 --save-every 2 --run run "$@"' - "$@"
    says err "rank 1: this rank was started $words: start all ranks with the same options"
    [[ ! -e run ]] || fail "a refused run left its directory"
}
differ "with --steps 5, and rank 0 with --steps 4" --steps 5
differ "with --resume, and rank 0 without --resume" --resume
# A model of the same shapes, with other weights on the other host.
for rank in 0 1; do
    expect 0 "$zero" train c.json --data text --steps 1 --save-every 1 --run $rank/weights --set seed=$rank
    expect 0 "$zero" ckpt export $rank/weights/checkpoints $rank/model
done
expect 1 as_ranks bash -c 'cd "$OMPI_COMM_WORLD_RANK" && exec "$ZERO" train ../c.json --data ../text --model model --steps 2 --run run'
says err "rank 1 begins with other weights than rank 0"
[[ ! -e 0/run ]] || fail "a refused run left its directory"
finish
