#!/bin/sh
# model_ranks_mpi.sh PROGRAM: model_ranks_processes_test.c with four ranks of MPI.
export ASAN_OPTIONS=detect_leaks=0
export TMPDIR=$TEST_TMPDIR
exec timeout 200 mpirun --allow-run-as-root --bind-to none --oversubscribe -n 4 "$1" rank
