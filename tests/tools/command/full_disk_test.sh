#!/usr/bin/env bash
# A training goes on where metrics.jsonl takes no more lines; it says so twice, and its status is 1.
source "$(dirname "$0")/lib.sh" "$1"
text 60 >text
config 3 ', "trace": {"steps": 0}' >c.json
expect 0 "$zero" train c.json --data text --steps 6 --run whole
whole=$(weights)

# goes_on RUN FIRST LOST WORDS: of the run that has just ended; line FIRST was the first that was LOST.
goes_on() {
    [[ $(weights) == "$whole" ]] || fail "$1: other weights"
    says err "zero train: step $2: cannot write $1/metrics.jsonl: $4; training goes on"
    says err "zero train: $1/metrics.jsonl lacks $3 lines, which could not be written: $4"
    [[ $(grep -c . err) == 2 ]] || fail "$1: said more than twice"
}

mkdir full && ln -s /dev/full full/metrics.jsonl
expect 1 "$zero" train c.json --data text --steps 6 --run full
goes_on full 1 6 "No space left on device"
rm -r full

# A limit on the size of files: the lines before it stay whole. Where SIGXFSZ is not ignored, it ends the process.
trap '' XFSZ
short_run=$whole
expect 0 "$zero" train c.json --data text --steps 12 --run longer && whole=$(weights)
bytes=$(wc -c <longer/metrics.jsonl)
blocks=4 # run.json has less
((bytes > blocks * 1024)) || fail "$bytes bytes in 12 lines: nothing to see with $blocks KiB"
if ((!sanitized)); then # whose own files break the limit
    (ulimit -f $blocks && exec "$zero" train c.json --data text --steps 12 --run limited --overwrite --quiet) >out 2>err
    status=$?
    ((status == 1)) || fail "limited: exit status $status, expected 1"
    had=$(wc -l <limited/metrics.jsonl)
    [[ $(grep -c '^{"step": .*}}$' limited/metrics.jsonl) == "$had" && $had -ge 1 ]] || fail "limited: half a line stays"
    goes_on limited $((had + 1)) $((12 - had)) "File too large"
fi
whole=$short_run

# A disk that is full before the first step: one sentence, and no step.
mkdir tiny
for kib in 4 8; do
    unshare -rm true 2>/dev/null || break # nobody may mount here
    expect 1 unshare -rm bash -c 'mount -t tmpfs -o size="$1"k none tiny && exec "${@:2}"' _ $kib \
        "$zero" train c.json --data text --steps 2 --run tiny/run --save-every 1 --quiet
    says err "tiny/run" && says err "No space left on device"
    [[ $(grep -c . err) == 1 && ! -s out ]] || fail "$kib KiB: $(cat out err)"
done

# In a save that fails too, both are said. Interrupted, the status is that of the interruption.
mkdir -p both/checkpoints && ln -s /dev/full both/metrics.jsonl && ln -s nowhere both/checkpoints/.step_00000002.saving
expect 1 "$zero" train c.json --data text --steps 2 --run both --save-every 2
says err "both/metrics.jsonl lacks 2 lines"
says err "saving at step 2: "

# What is no regular file is neither read nor cut: lines go to a device, and are lost where nobody takes them.
expect 0 "$zero" train c.json --data text --steps 3 --run base --save-every 3
goes_on_with() { # STATUS RUN; the caller has put a metrics.jsonl there
    local status=$1 run=$2
    cp -r base/checkpoints base/identity "$run"
    (ulimit -v 8000000 && exec timeout 120 "$zero" train c.json --data text --steps 6 --run "$run" --resume) >out 2>err
    (($? == status)) || fail "$run: not $status"
    [[ $(weights) == "$whole" ]] || fail "$run: other weights"
}
[[ $sanitized == 0 ]] || ulimit() { :; } # shadow memory is larger
for device in null zero full; do
    status=0 && [[ $device != full ]] || status=1
    mkdir $device && ln -s /dev/$device $device/metrics.jsonl
    goes_on_with $status $device
    [[ -c $device/metrics.jsonl ]] || fail "$device: is no device any more"
    [[ $device == full || ! -s err ]] || fail "$device: warned of nothing"
    expect $status timeout 120 "$zero" train c.json --data text --steps 6 --run $device --overwrite
done
goes_on full 1 6 "No space left on device"
mkdir nobody && mkfifo nobody/metrics.jsonl
goes_on_with 1 nobody
goes_on nobody 4 3 "No such device or address"
expect 1 timeout 120 "$zero" train c.json --data text --steps 6 --run nobody --overwrite
goes_on nobody 1 6 "No such device or address"
# A reader that is there before the run opens the pipe. Without a writer, only opening for both does not wait.
mkdir read && mkfifo read/metrics.jsonl
exec 3<>read/metrics.jsonl 4<read/metrics.jsonl 3>&-
goes_on_with 0 read
cat <&4 >seen
exec 4<&-
[[ $(sed 's/^{"step": \([0-9]*\),.*/\1/' seen | xargs) == "4 5 6" ]] || fail "read: $(cat seen)"

# A run that goes on without its old metrics begins new ones.
expect 0 "$zero" train c.json --data text --steps 3 --run resumed --save-every 3
rm resumed/metrics.jsonl
expect 0 "$zero" train c.json --data text --steps 6 --run resumed --resume
[[ $(weights) == "$whole" ]] || fail "resumed: other weights"
[[ $(sed 's/^{"step": \([0-9]*\),.*/\1/' resumed/metrics.jsonl | xargs) == "4 5 6" ]] || fail "resumed: steps $(sed 's/,.*//' resumed/metrics.jsonl | xargs)"
finish
