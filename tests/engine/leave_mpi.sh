#!/bin/sh
# leave_mpi.sh PROGRAM: leave_test.c with three ranks of MPI. Recovery is on, so that mpirun does not end the others.
export ASAN_OPTIONS=detect_leaks=0
export TMPDIR=$TEST_TMPDIR
timeout 200 mpirun --allow-run-as-root --enable-recovery --bind-to none --oversubscribe -n 3 \
    sh -c '"$@"; echo "ended $?"' sh "$1" rank >"$TEST_TMPDIR/out" 2>&1
cat "$TEST_TMPDIR/out"
[ "$(grep -c '^ended 0' "$TEST_TMPDIR/out")" = 3 ]
