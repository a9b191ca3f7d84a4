#!/bin/sh
# The suite under mpirun; its hashes must be those of the same ranks as threads. With a fault: what the ranks say.
# mpi_conformance.sh PROGRAM RANKS [FAULT]
set -u
program=$1 ranks=$2 fault=${3:-}
out=$TEST_TMPDIR/out
# By default mpirun ends all ranks as soon as one ends badly, before they can say what they saw.
export OMPI_MCA_orte_abort_on_non_zero_status=0
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
# The same for Open MPI 5, which then does not end a rank that is stuck (timeout does), nor the others where one exits.
[ "$fault" = exited ] || export PRTE_MCA_state_base_recoverable=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
export LSAN_OPTIONS=detect_leaks=0 ASAN_OPTIONS=detect_leaks=0
export TMPDIR=$TEST_TMPDIR
timeout 250 mpirun --allow-run-as-root -n "$ranks" "$program" mpi "$ranks" $fault > "$out.mpi" 2> "$out.errors"
status=$?
cat "$out.mpi" "$out.errors"
grep -q "checks failed" "$out.errors" && exit 1 # mpirun's status does not tell
[ "$fault" = reopened ] && exit $status # no fault: a test of its own
if [ "$fault" = exited ]; then
    # mpirun ends the others at once; were MPI finalised at that exit, they would wait for 10 x timeout_s.
    [ $status -ne 0 ] && ! grep -q "is alive" "$out.mpi"
    exit
fi
if [ -n "$fault" ]; then
    # Each survivor says so; mpirun does not end well, for MPI is not finalised after a failure. (That of Open MPI 5 does not tell.)
    mpirun --version | grep -q "Open MPI) 5" && status=untold
    told=$(grep -c "^rank [0-9]*: ZERO_E_" "$out.mpi")
    last=$((ranks - 1))
    [ "$fault" = unclosed ] && told=$(grep -c "while closing: rank $last is alive but did not close" "$out.mpi")
    case $fault in closed | stuck | unopened | killed | stopped | unclosed) ranks=$((ranks - 1)) ;; esac # the last rank is at fault
    [ "$told" -ge "$ranks" ] && [ $status != 0 ]
    exit
fi
[ $status -eq 0 ] || exit 1
"$program" local "$ranks" > "$out.local" || exit 1
grep hash "$out.mpi" | sort > "$out.1"
grep hash "$out.local" | sort > "$out.2"
[ "$(wc -l < "$out.1")" -eq "$ranks" ] && cmp "$out.1" "$out.2"
