#!/usr/bin/env bash
# The Slurm jobs of tools/examples, with stand-ins for srun and scontrol: two nodes of two tasks on this machine.
jobs=$PWD/$2
source "$(dirname "$0")/lib.sh" "$1"
mkdir bin
ln -s "$zero" bin/zero
cat >bin/scontrol <<'END'
#!/usr/bin/env bash
case $1 in
show) printf 'localhost\nother\n' ;;
requeue) echo "$2" >requeued ;;
esac
END
# Every task has its number; if one fails, the others are told to end.
cat >bin/srun <<'END'
#!/usr/bin/env bash
while [[ $1 == --* ]]; do
    [[ $1 != --mpi=pmix ]] || exec mpirun -np 4 --oversubscribe "${@:3}"
    shift
done
tasks=()
trap 'kill -TERM "${tasks[@]}"' TERM
for task in 0 1 2 3; do
    SLURM_PROCID=$task SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_ID=0 SLURM_LOCALID=$((task % 2)) "$@" &
    tasks+=($!)
done
status=0
for task in "${tasks[@]}"; do
    wait "$task" || status=$?
    while kill -0 "$task" 2>/dev/null; do wait "$task" || status=$?; done
done
exit "$status"
END
chmod +x bin/scontrol bin/srun
export PATH=$work/bin:$PATH SLURM_JOB_NODELIST='localhost,other'
export SLURM_JOB_ID=$((RANDOM * 32768 + RANDOM)) # gives tcp.sbatch its port; copies of this test run beside it
text >text
config 3 >c.json
expect 0 "$zero" train c.json --data text --steps 3 --ranks 4
alone=$(weights)
expect 0 "$jobs/tcp.sbatch" tcp c.json --data text --steps 3 --save-every 3
[[ -n $alone && $(weights) == "$alone" ]] || fail "tcp.sbatch: other weights than four threads'"
! grep -q "secret" err || fail "tcp.sbatch: the job has no secret"
if command -v mpirun >/dev/null && ((!sanitized)); then
    expect 0 "$jobs/mpi.sbatch" mpi c.json --data text --steps 3 --save-every 3
    [[ $(weights) == "$alone" ]] || fail "mpi.sbatch: other weights than four threads'"
fi

# Slurm's signal before the time is over: the run saves, and the job is queued again and goes on.
"$jobs/tcp.sbatch" long c.json --data text --steps 100000 --save-every 100000 >out 2>err &
job=$!
await has_steps long 1
pkill -TERM -P "$job" -f srun
wait "$job"
status=$?
((status == 143)) || fail "a job that is told to end: exit status $status"
[[ $(cat requeued) == "$SLURM_JOB_ID" ]] || fail "the job is not queued again"
made=$(grep -c '"loss"' long/metrics.jsonl)
expect 0 "$jobs/tcp.sbatch" long c.json --data text --steps $((made + 2)) --save-every 100000
(($(grep -c '"loss"' long/metrics.jsonl) == made + 2)) || fail "the job did not go on from step $made"

# It was ended before its first checkpoint.
mkdir early && touch early/metrics.jsonl
expect 0 "$jobs/tcp.sbatch" early c.json --data text --steps 1 --save-every 1
finish
