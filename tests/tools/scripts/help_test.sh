#!/usr/bin/env bash
# `tools/NAME --help` prints the head of the script, and does nothing else. Arguments that mean nothing are refused at once.
#   help_test.sh SCRIPT...
set -uo pipefail
failures=0
fail() { failures=$((failures + 1)) && echo "FAILED: $*" >&2; }

(($# >= 14)) || fail "$# scripts"
for script in "$@"; do
    name=tools/${script##*/}
    said=$(PATH=/usr/bin:/bin timeout 60 bash "$script" --help 2>&1) || fail "$name --help: exit status $?"
    [[ $said == *"  $name"* ]] || fail "$name --help: $said"
    [[ $(sed -n "2,$(($(wc -l <<<"$said") + 1))p" "$script") == "$(sed 's/^/# /; s/^# $/#/' <<<"$said")" ]] ||
        fail "$name --help is not the head of the script: $said"
    [[ $name == tools/test ]] && continue # its options are Bazel's
    said=$(timeout 60 bash "$script" --no-such-option 2>&1) && fail "$name --no-such-option: exit status 0"
    [[ $said == *"$name"* && $(wc -l <<<"$said") -lt 8 ]] || fail "$name --no-such-option: $said"
done
((failures == 0))
