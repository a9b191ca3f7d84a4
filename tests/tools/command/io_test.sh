#!/usr/bin/env bash
# `zero io`: a table, the block for a configuration, and sentences for what cannot be measured.
source "$(dirname "$0")/lib.sh" "$1"
mkdir drive

expect 0 "$zero" io drive --mib 16 --ms 1 && says out '"aio": {"block_size": ' && says out "mixed"
(($(grep -c 'KiB\|MiB' out) == 17)) || fail "not 16 rows and a heading"
[[ -z $(ls -A drive) ]] || fail "files are left"
expect 0 "$zero" io drive --mib 16 --ms 1 --no-uring && says out "pread and pwrite" && says err "io_uring is switched off"
expect 0 "$zero" help io && says out "PATH [OPTIONS]"

expect 2 "$zero" io && says err "PATH is missing"
expect 2 "$zero" io drive --mib 1 && says err "too small to measure with"
expect 1 "$zero" io no/such && says err "No such file or directory"
expect 1 "$zero" io drive --mib 999999999 && says err "free"
expect 1 "$zero" io nowhere --mib 1 --ms 1 && says err "cannot measure nowhere: No such file or directory"
[[ ! -e nowhere ]] || fail "a directory was made"
finish
