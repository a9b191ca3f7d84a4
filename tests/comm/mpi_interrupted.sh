#!/bin/sh
# mpi_interrupted.sh PROGRAM: a rank is interrupted while it waits for another one: to open (case 0), to make a group (1), and to open when
# this rank has left (2). Recovery is on, so that mpirun does not end the rank that would wait for ever. On a busy machine rank 0 may come
# late in cases 0 and 1, too: they are tried again.
program=$1 failures=0
export ASAN_OPTIONS=detect_leaks=0
export TMPDIR=$TEST_TMPDIR
for case in 0 1 2; do
    for try in 1 2 3; do
        rm -f "$TEST_TMPDIR/interrupted"
        timeout 120 mpirun --allow-run-as-root --enable-recovery --bind-to none --oversubscribe -n 2 \
            sh -c '"$@"; echo "ended $?"' sh "$program" $case >"$TEST_TMPDIR/out" 2>&1
        cat "$TEST_TMPDIR/out"
        [ "$(grep -c '^ended 0' "$TEST_TMPDIR/out")" = 2 ] || break
        [ $case != 2 ] && grep -q '^rank 0 came late:' "$TEST_TMPDIR/out" || continue 2
    done
    echo "case $case failed"
    failures=$((failures + 1))
done
exit $((failures > 0))
