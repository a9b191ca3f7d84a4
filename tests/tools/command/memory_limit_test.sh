#!/usr/bin/env bash
# A model that does not fit the memory of its control group is refused before it starts; with room it trains. Skipped
# where no control group can be made.
source "$(dirname "$0")/lib.sh" "$1"
text >text
config 3 | sed 's/"n_layer": 2, "n_embd": 32, "n_head": 2/"n_layer": 4, "n_embd": 512, "n_head": 2/' >c.json

# The group of this process: the part of its path and the file of its limit.
if group=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup) && [[ $group ]]; then
    folder=/sys/fs/cgroup/memory$group/${work##*/} file=memory.limit_in_bytes
else
    folder=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/${work##*/} file=memory.max
fi
if ! mkdir "$folder" 2>why || ! echo 300000000 >"$folder/$file" 2>why; then
    rmdir "$folder" 2>/dev/null
    echo "SKIPPED: no control group can be made here: $(cat why)"
    finish
fi
inside() { # BYTES COMMAND...
    echo "$1" >"$folder/$file"
    shift
    (echo "$BASHPID" >"$folder/cgroup.procs" && exec "$@")
}
expect 1 inside 300000000 "$zero" train c.json --ranks 2 --data text --steps 1 --run run
says err "2 ranks here need 0."
says err "$folder/$file allows 0.28 GiB"
expect 0 inside 4000000000 "$zero" train c.json --ranks 2 --data text --steps 1 --run run
rmdir "$folder"
finish
