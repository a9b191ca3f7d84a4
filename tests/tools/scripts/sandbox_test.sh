#!/usr/bin/env bash
# A test in a sandbox with process numbers of its own has a /dev/shm of its own (.bazelrc): nothing is in it yet.
[[ $(</proc/1/comm) == linux-sandbox ]] || { echo "SKIPPED: no sandbox with process numbers of its own" && exit; }
files=$(ls -A /dev/shm)
[[ -z $files ]] || { echo "FAILED: /dev/shm has the files of others: $files" >&2 && exit 1; }
