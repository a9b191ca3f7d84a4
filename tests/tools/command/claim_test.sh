#!/usr/bin/env bash
# A shadow on the drive is its run's: another run neither goes on with it nor writes over it, unless it is told to.
source "$(dirname "$0")/lib.sh" "$1"
text 100 >text
text 101 | tail -n 100 >other
shadow() { # DRIVE [SED]: the configuration with its state on the drive, and one thing changed
    config 2 ', "nvme": {"shadow": true}, "steps_per_print": 1' | sed 's/"train_micro_batch_size_per_gpu": 2/"train_batch_size": 4/' |
        sed "s|\"stage\": 2|&, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"$work/$1\"}|" | sed "${2-}"
}
train() { "$zero" train "${config:-c.json}" --data "${data:-text}" "$@"; }
id() { sed -n 's/^id //p' "$1/identity"; }
# Beside it the drive may warn of the memlock limit, which other tests use up.
one_line() { says err "$1" && { [[ $(grep -vc 'memlock limit' err) == 1 ]] || fail "said more than once"; }; }

# killed RUN DRIVE: in the midst of its steps; its drive is kept as it was, for the cases below.
killed() {
    shadow "$2" >c.json
    "$zero" train c.json --data text --steps 1000000 --run "$1" --overwrite --ranks 2 >out 2>err &
    await has_steps "$1" 4
    kill -KILL $! && wait $! 2>/dev/null
    cp -r "$2" "$2.kept" && cp -r "$1" "$1.kept"
}
again() { rm -rf drive first && cp -r drive.kept drive && cp -r first.kept first; }
killed first drive
had=$(wc -l <first/metrics.jsonl)
first=$(id first)
[[ $first =~ ^[0-9a-f]{32}$ ]] || fail "id: $first"

# ---- recovery ----

# refused WORDS: --recover, in the directory of the run, then in another one; the drive stays as it was.
refused() {
    expect 1 train --steps $((had + 3)) --run first --ranks 2 --recover
    one_line "the shadow under $work/drive was made with other settings than this configuration: $1; use the settings it had, or go on anyway with --recover ${first:0:12}"
    rm -rf second
    expect 1 train --steps $((had + 3)) --run second --ranks 2 --recover
    one_line "the shadow under $work/drive belongs to another run (id ${first:0:12}, begun $(sed -n 's/^begun //p' first/identity), in $work/first): $1: give that run's --run DIR, or name it with --recover ${first:0:12}"
    [[ ! -e second ]] || fail "a refused recovery left its directory"
    cmp -s drive/zero-shadow-00000-of-00002 drive.kept/zero-shadow-00000-of-00002 || fail "a refused recovery changed the shadow"
}
shadow drive 's/"seed": 3/"seed": 4/' >c.json && refused "its seed is 3, this configuration has 4"
shadow drive 's/1e-2/1e-3/' >c.json && refused "its optimizer.params.lr is 0.01, this configuration has 0.001"
shadow drive 's/"train_batch_size": 4/"train_batch_size": 8/' >c.json && refused "its train_batch_size is 4, this configuration has 8"
shadow drive 's/"gradient_clipping": 1.0, //' >c.json && expect 1 train --steps 3 --run first --ranks 1 --recover # the default: no difference, but of ranks
says err "of a run on 2 ranks, and here are 1"
shadow drive 's/"gradient_clipping": 1.0/"data": {"order": "shuffled"}/' >c.json &&
    refused 'its data.order is "sequential", this configuration has "shuffled"'
shadow drive >c.json
data=other refused "the contents of its data differ"
expect 1 train --steps $((had + 3)) --run second --ranks 2 --recover
one_line "the shadow under $work/drive belongs to another run (id ${first:0:12}"

# The way of working may change; so may the spelling.
shadow drive 's/"lr": 1e-2/"lr": 0.010/; s/"steps_per_print": 1/"steps_per_print": 2, "gradient_accumulation_steps": 2, "trace": {"steps": 0}/' >c.json
expect 0 train --steps $((had + 3)) --run first --ranks 2 --recover
[[ $(id first) == "$first" ]] || fail "a recovered run has another id: $(id first)"

# By its name another's goes on: in its own directory, or another, whose id is the shadow's then.
shadow drive 's/1e-2/1e-3/' >c.json
again
expect 1 train --steps $((had + 3)) --run first --ranks 2 --recover 0123456789ab
one_line "belongs to run ${first:0:12}"
expect 0 train --steps $((had + 3)) --run first --ranks 2 --recover "${first:0:12}"
for name in "$first" any; do
    again && rm -rf second
    expect 0 train --steps $((had + 3)) --run second --ranks 2 --recover $name
    says out "resumed   after step"
    [[ $(id second) == "$first" ]] || fail "$name: id $(id second)"
done

# ---- a run that begins ----
again && rm -rf second
shadow drive >c.json
expect 1 train --steps 3 --run second --overwrite --ranks 2
says err "the shadow under $work/drive holds step "
one_line " of run ${first:0:12} (begun $(sed -n 's/^begun //p' first/identity), in $work/first), which has not ended: go on with that run (--run DIR --recover), keep it and give this run another nvme_path, or discard it with --discard-shadow"
cmp -s drive/zero-shadow-00000-of-00002 drive.kept/zero-shadow-00000-of-00002 || fail "a refused run changed the shadow"
shadow drive 's/"type": "AdamW"/"type": "Adam"/; s/"seed"/"bf16": {"enabled": false}, "seed"/' >other.json # of another layout, and of as many bytes
config=other.json expect 1 train --steps 3 --run second --overwrite --ranks 2
says err "which has not ended"
expect 0 train --steps 3 --run second --overwrite --ranks 2 --discard-shadow
says out "shadow    step "
says out "is written over under $work/drive: --discard-shadow"
expect 1 train --steps 9 --run first --ranks 2 --recover
one_line "belongs to another run"
shadow drive 's/"n_embd": 32/"n_embd": 64/' >larger.json # of another size
config=larger.json expect 1 train --steps 2 --run second --overwrite --ranks 2
says err "of a run with another model or configuration"
config=larger.json expect 0 train --steps 2 --run second --overwrite --ranks 2 --discard-shadow

# One that has ended, and one of the same directory, leave a line and no question.
config=larger.json expect 0 train --steps 2 --run third --ranks 2
says out "is written over under $work/drive: that run has ended"
again
expect 0 train --steps 2 --run first --overwrite --ranks 2
says out "is written over under $work/drive: this directory's own run begins anew"
[[ $(id first) != "$first" ]] || fail "a new training has the old id"
expect 0 train --steps 2 --run fresh --ranks 2 --quiet
grep -v "memlock limit" err >others
[[ $(grep -c . out) == 1 && ! -s others ]] || fail "a quiet run speaks"
# Its directory is gone: what the drive says of it counts.
rm -rf fresh && expect 0 train --steps 2 --run fresh --overwrite --ranks 2

# A run whose last checkpoint failed has not ended: the drive may hold the only copy.
mkdir -p unsaved/checkpoints && ln -s nowhere unsaved/checkpoints/.step_00000002.saving
expect 1 train --steps 2 --run unsaved --ranks 2 --save-every 2
expect 1 train --steps 2 --run second --overwrite --ranks 2
says err "which has not ended"
expect 0 train --steps 4 --run unsaved --ranks 2 --recover

# From a checkpoint the run keeps its id, which the checkpoint has too.
rm -r unsaved/checkpoints
expect 0 train --steps 2 --run saved --ranks 2 --save-every 1
saved=$(id saved)
expect 0 train --steps 4 --run saved --ranks 2 --resume
says out "is written over under $work/drive: this run goes on from a checkpoint"
expect 0 "$zero" ckpt info saved/checkpoints
says out "run         $saved"
rm saved/identity
expect 0 train --steps 6 --run saved --ranks 2 --resume 1 --discard-shadow
[[ $(id saved) == "$saved" ]] || fail "a resumed run has another id"

# One that is damaged can be recovered by nobody, and is not written over unasked.
again
shadow drive >c.json
for rank in 0 1; do head -c 8192 /dev/urandom | dd of=drive/zero-shadow-0000$rank-of-00002 conv=notrunc status=none; done
expect 1 train --steps $((had + 3)) --run first --ranks 2 --recover
one_line "is damaged, or of another version"
expect 1 train --steps 2 --run second --overwrite --ranks 2
one_line "or discard it with --discard-shadow"
expect 0 train --steps 2 --run second --overwrite --ranks 2 --discard-shadow

# An earlier version's shadow, or that of another program, says of no run.
expect 2 train --steps 2 --run first --ranks 2 --recover --discard-shadow
says err "drop one"
# A copy of a run's directory has its id: what the original left on the drive is not the copy's.
again
shadow drive >c.json
cp -r first copy
expect 1 train --steps 3 --run copy --overwrite --ranks 2
says err "which has not ended"

# What cannot begin lets nothing go.
expect 1 train --steps 3 --run /proc/x --ranks 2 --discard-shadow
says err "cannot make the run's directory /proc/x"
expect 0 train --steps $((had + 3)) --run first --ranks 2 --recover
finish
