#!/usr/bin/env bash
# Deleting and replacing checkpoints never reaches through a symbolic link: the link is named, and what it points to
# stays.
source "$(dirname "$0")/lib.sh" "$1"
text 20 >text
config >c.json
train() { "$zero" train c.json --data text "$@"; }
mkdir treasure treasure/sub
fill() { echo precious >treasure/file && echo precious >treasure/token && echo precious >treasure/rank_00000.safetensors; }
fill
untouched() { [[ $(cat treasure/* 2>/dev/null) == $'precious\nprecious\nprecious' && -d treasure/sub ]] || fail "$1: the files behind the link are gone: $(ls treasure)"; }
expect 0 train --steps 3 --save-every 1 --run base

# once FILE WORDS: a warning comes in one line, however many saves follow.
once() { [[ $(grep -cF -- "$2" "$1") == 1 ]] || fail "\"$2\" stands in $(grep -cF -- "$2" "$1") lines of $1"; }
# planted STATUS NAME TARGET [OPTION...]: in the checkpoints of a copy of the run, which then goes on and saves.
planted() {
    local status=$1 name=$2 target=$3
    shift 3
    rm -rf run && cp -r base run
    rm -rf "run/checkpoints/$name"
    ln -s "$target" "run/checkpoints/$name"
    expect "$status" train --steps 5 --save-every 1 --run run --resume 3 "$@"
    says err "run/checkpoints/$name"
    says err "symbolic link"
    [[ -L run/checkpoints/$name ]] || fail "$name: the link is gone"
    [[ $(wc -l <run/metrics.jsonl) == 5 ]] || fail "$name: stopped after $(wc -l <run/metrics.jsonl) steps"
    untouched "$name"
    fill
}
# latest_is STEP: the last save has moved it, and the checkpoint is whole.
latest_is() {
    [[ $(cut -d ' ' -f 1 run/checkpoints/latest) == "step_0000000$1" ]] || fail "latest: $(cat run/checkpoints/latest)"
    expect 0 "$zero" ckpt verify run/checkpoints
}
planted 0 .step_00000009.saving "$work/treasure"
once err "saves go on: remove it by hand"
latest_is 5
planted 0 .step_00000009.removed ../../treasure
latest_is 5
planted 0 .step_00000004.saving "$work/treasure" # the name that one save needs: that one fails
says err "saving at step 4: "
[[ ! -e run/checkpoints/step_00000004 ]] || fail "step 4 was saved"
latest_is 5
planted 0 step_00000001 "$work/treasure" --keep 2
once err "an old checkpoint stays"
latest_is 5
[[ $(echo run/checkpoints/step_*) == *_00000001*_00000004*_00000005 ]] || fail "kept: $(ls run/checkpoints)"
planted 1 step_00000005 "$work/treasure"
latest_is 4

# stuck WHERE COMMAND...: the command puts what no save makes into the directory WHERE; the run goes on, and warns once.
stuck() {
    local where=$1 before
    shift
    rm -rf run && cp -r base run
    mkdir -p "run/checkpoints/$where"
    (cd "run/checkpoints/$where" && "$@")
    before=$(ls -A "run/checkpoints/$where")
    expect 0 train --steps 6 --save-every 1 --run run --resume 3 --keep 2
    once err "run/checkpoints/$where/"
    [[ $(ls -A "run/checkpoints/$where") == "$before" ]] || fail "$where: $before became $(ls -A "run/checkpoints/$where")"
    [[ $(ls -A run/checkpoints) == "$(printf '%s\n' "$where" latest step_00000005 step_00000006 | LC_ALL=C sort)" ]] || fail "kept: $(ls -A run/checkpoints)"
    latest_is 6
    untouched "$where"
}
export LC_ALL=C
for where in step_00000001 .step_00000009.saving .step_00000009.removed; do
    stuck $where mkdir hf
    stuck $where mkdir zz_last
    stuck $where ln -s "$work/treasure/file" extra
    stuck $where ln -s ../../../treasure .step_00000003.saving
    stuck $where touch .nfs000000000001
    stuck $where mkfifo pipe
done
# Removed by hand, as the warning says, it is in nobody's way.
rm -rf run/checkpoints/.step_00000009.removed
expect 0 train --steps 8 --save-every 1 --run run --resume --keep 1
[[ ! -s err ]] || fail "warned of nothing"

# The same step again: the old one cannot be deleted, and the new one is saved.
rm -rf run && cp -r base run && mkdir run/checkpoints/step_00000003/hf
expect 0 train --steps 4 --save-every 1 --run run --resume 2
once err "run/checkpoints/.step_00000003.saving/hf"
latest_is 4
[[ ! -e run/checkpoints/step_00000003/hf ]] || fail "step 3 was not saved again"

# A directory of another user's, or a file: root alone can make one here.
rm -rf run && cp -r base run
mkdir run/checkpoints/.step_00000009.saving && touch run/checkpoints/.step_00000009.saving/file
if chown 12345 run/checkpoints/.step_00000009.saving 2>/dev/null; then
    chown 12345 run/checkpoints/step_00000001/manifest.json
    expect 0 train --steps 4 --save-every 1 --run run --resume 3 --keep 1
    once err ".step_00000009.saving: it belongs to another user"
    once err "step_00000001/manifest.json: it belongs to another user"
    [[ -e run/checkpoints/.step_00000009.saving/file ]] || fail "deleted another user's file"
    [[ -e run/checkpoints/step_00000001/manifest.json ]] || fail "deleted another user's file"
    latest_is 4
fi

# Import makes a step, export makes a directory: neither through a link.
expect 0 "$zero" ckpt export base/checkpoints exported
mkdir imports
ln -s "$work/treasure" imports/step_00000000
expect 1 "$zero" ckpt import exported imports
says err "imports holds step_00000000 already"
rm imports/step_00000000
ln -s "$work/treasure" imports/.step_00000007.saving
expect 0 "$zero" ckpt import exported imports
says err "imports/.step_00000007.saving: it is a symbolic link"
expect 0 "$zero" ckpt verify imports
ln -s "$work/treasure" model.partial
expect 1 "$zero" ckpt export base/checkpoints model
says err "model.partial"
rm model.partial
ln -s "$work/treasure" out_link
expect 1 "$zero" ckpt export base/checkpoints out_link
says err "out_link"
untouched "import and export"

# What a run replaces in its directory: a link is replaced, and not what it points to.
rm -rf run && mkdir run
for name in run.json trace.json run.json.new identity.new; do ln -s ../treasure/file run/$name; done
expect 0 train --steps 3 --run run --overwrite
untouched "the run's files"
for name in run.json trace.json; do [[ -f run/$name && ! -L run/$name ]] || fail "$name is no file"; done

# A user's own link in place of the directory of all checkpoints is followed.
rm -rf run && cp -r base run
mv run/checkpoints elsewhere && ln -s ../elsewhere run/checkpoints
expect 0 train --steps 5 --save-every 1 --run run --resume --keep 1
[[ $(ls elsewhere) == $'latest\nstep_00000005' ]] || fail "kept: $(ls elsewhere)"
finish
