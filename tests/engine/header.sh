#!/bin/sh
# header.sh C CC: zero.h is C99 to C++20 without a warning, in a program that uses the engine's inner names for its own; zero.hpp is
# C++17 and C++20.
set -u
status=0
check() { # COMPILER STANDARDS...
    compiler=$1
    shift
    command -v "${compiler%% *}" >/dev/null || return 0
    for standard; do
        $compiler -std="$standard" -Wall -Wextra -Wpedantic -Wconversion -Werror -I. -fsyntax-only "$source" ||
            { echo "FAILED: $compiler -std=$standard" >&2 && status=1; }
    done
}
source=$1
check gcc c99 c11 c17
check "g++ -x c++" c++11 c++17 c++20
check clang c99 c11 c17
check "clang++ -x c++" c++11 c++17 c++20
source=$2
check g++ c++17 c++20
check clang++ c++17 c++20
exit $status
