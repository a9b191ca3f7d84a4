#!/bin/sh
# header.sh C CC: zero.h, in the source and as it is installed, is C99 to C++20 without a warning, in a program that uses the
# engine's inner names for its own; zero.hpp is C++17 and C++20. And zero.h says of each function whether it is local or collective: in
# the comment above, beside it, or at the head of its part.
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
awk '
    /^\/\* ---- / { part = ""; said = "" ; in_part = 1 }
    /^\/\*/ { text = "" ; open = 1 }
    open { text = text $0; if (/\*\/$/) { open = 0; if (in_part) part = text; else said = text; in_part = 0 } next }
    /^[a-z].*[ *]zero_[a-z0-9_]*\(/ && !/^(typedef|template)/ {
        line = $0
        while (line !~ /;/ && (getline more) > 0) line = line more
        if (tolower(part said line) !~ /(^|[^_a-z])(local|collective)/) { print "FAILED: local or collective? " $0; failed = 1 }
    }
    END { exit failed }' engine/zero.h >&2 || status=1
exit $status
