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

# planted NAME TARGET [OPTION...]: in the checkpoints of a copy of the run, which then goes on and saves.
planted() {
    local name=$1 target=$2
    shift 2
    rm -rf run && cp -r base run
    rm -rf "run/checkpoints/$name"
    ln -s "$target" "run/checkpoints/$name"
    expect 1 train --steps 5 --save-every 1 --run run --resume 3 "$@"
    says err "run/checkpoints/$name"
    says err "symbolic link"
    [[ -L run/checkpoints/$name ]] || fail "$name: the link is gone"
    [[ $(wc -l <run/metrics.jsonl) == 5 ]] || fail "$name: stopped after $(wc -l <run/metrics.jsonl) steps"
    untouched "$name"
    fill
}
planted .step_00000009.saving "$work/treasure"
planted .step_00000009.removed ../../treasure
planted .step_00000004.saving "$work/treasure"
planted step_00000001 "$work/treasure" --keep 2
planted step_00000005 "$work/treasure"

# A link inside what is deleted: a left-over, and an old checkpoint.
rm -rf run && cp -r base run
mkdir run/checkpoints/.step_00000009.saving
ln -s "$work/treasure/file" run/checkpoints/.step_00000009.saving/inside
expect 1 train --steps 4 --save-every 1 --run run --resume 3
says err ".step_00000009.saving/inside: it is a symbolic link"
untouched "inside a left-over"
rm -rf run && cp -r base run
ln -s "$work/treasure" run/checkpoints/step_00000001/inside
expect 1 train --steps 4 --save-every 1 --run run --resume 3 --keep 1
says err "inside: it is a symbolic link"
untouched "inside a checkpoint"

# A directory of another user's: root alone can make one here.
rm -rf run && cp -r base run
mkdir run/checkpoints/.step_00000009.saving && touch run/checkpoints/.step_00000009.saving/file
if chown 12345 run/checkpoints/.step_00000009.saving 2>/dev/null; then
    expect 1 train --steps 4 --save-every 1 --run run --resume 3
    says err "the directory is another user's"
    [[ -e run/checkpoints/.step_00000009.saving/file ]] || fail "deleted another user's file"
fi

# Import replaces a step, export makes a directory: neither through a link.
expect 0 "$zero" ckpt export base/checkpoints exported
mkdir imports
ln -s "$work/treasure" imports/step_00000000
expect 1 "$zero" ckpt import exported imports
says err "imports/step_00000000 is there already, as a symbolic link"
rm imports/step_00000000
ln -s "$work/treasure" imports/.step_00000007.saving
expect 1 "$zero" ckpt import exported imports
says err "imports/.step_00000007.saving: it is a symbolic link"
ln -s "$work/treasure" out.partial
expect 1 "$zero" ckpt export base/checkpoints out
says err "out.partial"
rm out.partial
ln -s "$work/treasure" out_link
expect 1 "$zero" ckpt export base/checkpoints out_link
says err "out_link"
untouched "import and export"

# What a run replaces in its directory: a link is replaced, and not what it points to.
rm -rf run && mkdir run
for name in run.json trace.json identity run.json.new identity.new; do ln -s ../treasure/file run/$name; done
expect 0 train --steps 3 --run run
untouched "the run's files"
for name in run.json trace.json identity; do [[ -f run/$name && ! -L run/$name ]] || fail "$name is no file"; done

# A user's own link in place of the directory of all checkpoints is followed.
rm -rf run && cp -r base run
mv run/checkpoints elsewhere && ln -s ../elsewhere run/checkpoints
expect 0 train --steps 5 --save-every 1 --run run --resume --keep 1
[[ $(ls elsewhere) == $'latest\nstep_00000005' ]] || fail "kept: $(ls elsewhere)"
finish
