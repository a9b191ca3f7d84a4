#!/usr/bin/env bash
# What a run leaves for `zero report`, and the page that becomes of it.
source "$(dirname "$0")/lib.sh" "$1"
text >text
config 3 ', "steps_per_print": 1' >c.json

# Both ranks' timelines, of the second and the third step, in one file; by default and where the run is its own name.
expect 0 "$zero" train c.json --data text --steps 4 --ranks 2 --run run
[[ -s run/trace.json && -s run/run.json ]] || fail "the run left no trace.json or no run.json"
says run/trace.json '"name":"rank 1"'
says run/trace.json '"name":"backward h.0"'
whole_trace run/trace.json
traced=$(weights)
expect 0 "$zero" report run
says out run/report.html
says run/report.html 'ZeRO stage 3'
says run/report.html 'rank 1'
says run/report.html '4</b><span>of 4 steps'
says run/report.html '</b><span>memory per rank'
grep -qE 'sent between ranks</td><td></td><td>([0-9.]+ KiB)</td><td>\1</td>' run/report.html || fail "what was sent is not as planned: $(grep 'sent between' run/report.html)"
expect 0 "$zero" report run --out page.html
cmp -s page.html run/report.html || fail "--out made another page"

# A scale whose ticks vanish beside its values: the page ends.
mkdir far && cp run/run.json far && printf '{"step": %d, "loss": %s, "seconds": 1}\n' 1 10000000000000000 2 10000000000000002 >far/metrics.jsonl
expect 0 bash -c 'ulimit -f 4000 && exec "$0" report far' "$zero"
# A path that is not UTF-8: JSON all the same.
cp c.json $'caf\xe9.json'
expect 0 "$zero" train $'caf\xe9.json' --data text --steps 1 --run latin
python3 -c 'import json; json.loads(open("latin/run.json", "rb").read().decode())' || fail "latin/run.json is no JSON"

# The configuration says which steps; tracing changes no bit; one step alone is traced as well.
config 3 ', "trace": {"first_step": 1, "steps": 4}' >all.json
expect 0 "$zero" train all.json --data text --steps 4 --ranks 2 --run all
[[ $(weights) == "$traced" ]] || fail "another trace, other weights"
# The timeline of a run does not outlive it where another one begins over it.
cp -r run anew
expect 0 "$zero" train all.json --data text --steps 1 --run anew --overwrite --set trace='{"steps": 0}'
[[ ! -e anew/trace.json ]] || fail "the timeline of an earlier run is still there"
(($(grep -c AGREE all/trace.json) == 8)) || fail "two ranks agree in four steps, the trace says $(grep -c AGREE all/trace.json)"
whole_trace all/trace.json
expect 0 "$zero" train c.json --data text --steps 1 --run one
(($(grep -c AGREE one/trace.json) == 1)) || fail "one step of one rank, the trace says $(grep -c AGREE one/trace.json)"
expect 0 "$zero" report one

config 3 ', "trace": {"steps": 0}' >none.json
expect 0 "$zero" train none.json --data text --steps 4 --ranks 2 --run none
[[ ! -e none/trace.json ]] || fail "a trace that the configuration does not want"
expect 0 "$zero" report none
says none/report.html 'no trace.json'

# A trace that cannot be written costs the run nothing else.
mkdir -p blocked/trace.json
expect 0 "$zero" train c.json --data text --steps 4 --ranks 2 --run blocked
says err 'trace.json: Is a directory'
[[ $(weights) == "$traced" ]] || fail "a trace that was not written, other weights"

# Runs beside each other.
expect 0 "$zero" report all one --out both.html
says both.html 'Runs compared' && says both.html '</svg>all</td>' && says both.html '</svg>one</td>'
expect 2 "$zero" report all one && says err "--out is missing"
expect 2 "$zero" report one --watch && says err "--watch is gone: write the page anew, or let the run write tensorboard/"
expect 1 "$zero" report all nowhere --out x && says err "nowhere holds no run"

# Pipes among its files, which would never end.
for file in run.json metrics.jsonl trace.json; do
    cp -r run piped && rm -f piped/$file && mkfifo piped/$file
    expect 1 "$zero" report piped --out x && says err "cannot read piped/$file: it is not a regular file"
    rm -r piped
done

cp -r run large && truncate -s 17M large/run.json
expect 1 "$zero" report large --out x && says err "large/run.json has more than 16777216 bytes"

expect 1 "$zero" report nowhere
says err 'nowhere holds no run'
expect 2 "$zero" report
says err 'RUN is missing'
finish
