#!/usr/bin/env bash
# A rank that dies, stops, or was started with another configuration ends all ranks soon, and they say which rank it
# was and what they waited for. mpirun's recovery is on where it would end the ranks before they can say so.
source "$(dirname "$0")/lib.sh" "$1"
text >text
timeout_s=5
config 3 ", \"comm\": {\"timeout_s\": $timeout_s}" >c.json

# As rank.sh PROGRAM...: the rank's process number and exit status go to files; rank 1 may have a config of its own.
cat >rank.sh <<'RANK'
#!/usr/bin/env bash
rank=$OMPI_COMM_WORLD_RANK config=c.json
[[ $rank == 1 && -n ${ODD-} ]] && config=$ODD
"$1" train "$config" --data text --steps 1000000 --run run >"out.$rank" 2>"err.$rank" &
echo $! >"pid.$rank.new" && mv "pid.$rank.new" "pid.$rank"
wait $!
echo $? >"status.$rank"
RANK
chmod +x rank.sh

begin() { # VARIABLE=VALUE...
    rm -rf run pid.* status.* out.* err.*
    env "$@" ASAN_OPTIONS=detect_leaks=0 mpirun --enable-recovery --bind-to none --oversubscribe -np 3 ./rank.sh "$zero" >mpirun.out 2>&1 &
    launcher=$!
}
ended() { # RANK...
    local rank
    for rank; do [[ -s status.$rank ]] || return 1; done
}

# say RANK WORDS...: it ended with a failure, and its words are in what it said.
say() {
    local rank=$1 word
    shift
    [[ $(cat "status.$rank" 2>/dev/null) == [12] ]] || fail "rank $rank has exit status $(cat "status.$rank" 2>&1)"
    for word; do says "err.$rank" "$word"; done
}

lose() { # SIGNAL: sent to rank 1 in the middle of a run
    local since
    begin
    await has_steps run 3
    since=$SECONDS # before the signal: this script may rest after it
    kill -s "$1" "$(cat pid.1)"
    await ended 0 2
    ((SECONDS - since + 1 >= timeout_s)) || fail "SIG$1: given up after $((SECONDS - since)) s"
    for rank in 0 2; do say "$rank" "rank 1 has been silent for $timeout_s" "while rank $rank waited in" " of " "call "; done
    grep -qE "waited in [a-z-]+ of [a-z0-9.' ]+ \([0-9]+ x [a-z0-9]+" err.0 || fail "rank 0 names no operation and unit: $(cat err.0)"
    kill -KILL "$(cat pid.1)" 2>/dev/null
    wait "$launcher"
    for rank in 0 1 2; do kill -0 "$(cat "pid.$rank")" 2>/dev/null && fail "SIG$1: rank $rank still runs"; done
}
lose KILL
lose STOP

# odd FILE WORDS...: rank 1 reads FILE; all end by themselves, and soon.
odd() {
    local file=$1
    shift
    begin ODD="$file"
    await ended 0 1 2
    for rank in 0 1 2; do say "$rank" "$@"; done
    wait "$launcher"
}
sed 's/1e-2/1e-3/' c.json >other.json
sed 's/"optimizer"/"optimiser"/' c.json >wrong.json
odd other.json "rank 1 has another configuration than rank 0"
odd wrong.json 'wrong.json: optimiser: unknown key'
odd missing.json 'missing.json: cannot be opened'

# Ranks that are threads go with their process.
rm -rf run
"$zero" train c.json --ranks 3 --data text --steps 1000000 --run run >out 2>err &
await has_steps run 3
kill -KILL $!
wait $!
status=$?
((status == 137)) || fail "threads: exit status $status, expected 137"
finish
