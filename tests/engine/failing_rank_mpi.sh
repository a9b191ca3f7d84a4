#!/bin/sh
# failing_rank_mpi.sh PROGRAM: each fault of failing_rank_test.c with three ranks that are processes. Recovery is on, so that
# mpirun does not end the ranks that would wait for ever.
program=$1 failures=0
export ASAN_OPTIONS=detect_leaks=0
export TMPDIR=$TEST_TMPDIR
for fault in 0 1 2 3 4 5 6; do
    timeout 120 mpirun --allow-run-as-root --enable-recovery --bind-to none --oversubscribe -n 3 \
        sh -c '"$@"; echo "ended $?"' sh "$program" $fault >"$TEST_TMPDIR/out" 2>&1
    [ "$(grep -c '^ended 0' "$TEST_TMPDIR/out")" = 3 ] && continue
    echo "fault $fault:"
    cat "$TEST_TMPDIR/out"
    failures=$((failures + 1))
done
exit $((failures > 0))
