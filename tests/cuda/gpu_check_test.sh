#!/usr/bin/env bash
# tools/gpu-check on the stand-in: what passes, fails, takes too long and measures is told apart, in both files.
set -uo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin" "$dir/lib"
cp tools/gpu-check "$dir/"
cp tests/cuda/norm_test_main "$dir/bin/norm_test"
cp tests/bench/cuda_kernels_bench "$dir/bin/"
echo 'sleep 60' >"$dir/bin/slow" && chmod +x "$dir/bin/slow"
echo 0123456789ab >"$dir/commit"
cat >"$dir/gpu-check.runs" <<RUNS
# a comment
the norm    | 60 | //tests/cuda:norm_test_main       |
a benchmark | 60 | //tests/bench:cuda_kernels_bench  | --elements 5000 --rounds 1 --json {json}
bad "usage" | 60 | //tests/bench:cuda_kernels_bench  | --nonsense
too slow    |  1 | //tests:slow                      |
a peer      | 60 | python:peer.py                    | here
no peer     | 60 | python:none.py                    |
RUNS
mkdir "$dir/python"
printf 'import sys\nprint("the peer", sys.argv[1])\n' >"$dir/python/peer.py"
echo 'print("skipped: no torch")' >"$dir/python/none.py"

failures=0
expect() { # WHAT FILE PATTERN
    grep -qE -- "$3" "$2" && return
    echo "$1: $2 has no line like $3:" && cat "$2"
    failures=1
}
tests/cuda/with_stand_ins.sh 1 "$dir/gpu-check" --out "$dir/found" >"$dir/log" 2>&1 && { echo "exit status 0 with failures" && failures=1; }
expect "a pass" "$dir/found.md" '^\| the norm \| passed \| [0-9]+ \|$'
expect "a benchmark's table" "$dir/found.md" '^    adamw, fp32 .*of a copy$'
expect "a failure" "$dir/found.md" '^\| bad "usage" \| FAILED \(2\) \| [0-9]+ \|$'
expect "too slow" "$dir/found.md" '^\| too slow \| FAILED \(over 1 s\) \| [0-9]+ \|$'
expect "a program of Python's" "$dir/found.json" '"name": "a peer".*"verdict": "passed".*"last_line": "the peer here"'
expect "what is not there" "$dir/found.md" '^\| no peer \| skipped: no torch \| [0-9]+ \|$'
expect "the commit" "$dir/found.json" '"commit": "0123456789ab"'
expect "a benchmark's numbers" "$dir/found.json" '"numbers": \[\{"name": "copy", "elements": 5000'
expect "a quoted name" "$dir/found.json" '"name": "bad \\"usage\\""'
tar -C "$dir" -czf "$dir/carried.tar.gz" bin lib && rm -r "$dir/bin" "$dir/lib" # as it is packed
sed -i '/^bad/d; /^too slow/d' "$dir/gpu-check.runs"
tests/cuda/with_stand_ins.sh 1 "$dir/gpu-check" >"$dir/log" 2>&1 || { echo "exit status not 0 where all passed:" && cat "$dir/log" && failures=1; }
[[ -s $dir/results.json ]] || { echo "no results where no name was given" && failures=1; }
exit "$failures"
