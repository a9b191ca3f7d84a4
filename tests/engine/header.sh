#!/bin/sh
# header.sh C CC: zero.h, in the source and as it is installed, is C99 to C++20 without a warning, in a program that uses the
# engine's inner names for its own; zero.hpp is C++17 and C++20.
set -u
status=0
check() { # COMPILER STANDARDS...
    compiler=$1
    shift
    command -v "${compiler%% *}" >/dev/null || return 0
    for standard; do
        for header in "-I." "-DINSTALLED -Iengine/include"; do
            # shellcheck disable=SC2086
            $compiler -std="$standard" -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror $header -fsyntax-only "$source" ||
                { echo "FAILED: $compiler -std=$standard $header" >&2 && status=1; }
        done
    done
}
source=$1
check gcc c99 c11 c17
check "g++ -x c++" c++11 c++17 c++20
check clang c99 c11 c17
check "clang++ -x c++" c++11 c++17 c++20
source=$2
for compiler in g++ clang++; do
    command -v $compiler >/dev/null || continue
    for standard in c++17 c++20; do
        $compiler -std=$standard -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror -I. -fsyntax-only "$source" ||
            { echo "FAILED: $compiler -std=$standard $source" >&2 && status=1; }
    done
done
exit $status
