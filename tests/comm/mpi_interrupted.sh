#!/bin/sh
# mpi_interrupted.sh PROGRAM: a rank is interrupted while it waits for another one to open, then to make a group. Recovery is on, so that
# mpirun does not end the rank that would wait for ever.
program=$1 failures=0
export ASAN_OPTIONS=detect_leaks=0
export TMPDIR=$TEST_TMPDIR OMPI_MCA_btl_vader_backing_directory=$TEST_TMPDIR
for group in 0 1; do
    rm -f "$TEST_TMPDIR/interrupted"
    timeout 120 mpirun --allow-run-as-root --enable-recovery --bind-to none --oversubscribe -n 2 \
        sh -c '"$@"; echo "ended $?"' sh "$program" $group >"$TEST_TMPDIR/out" 2>&1
    cat "$TEST_TMPDIR/out"
    [ "$(grep -c '^ended 0' "$TEST_TMPDIR/out")" = 2 ] && continue
    echo "group $group failed"
    failures=$((failures + 1))
done
exit $((failures > 0))
