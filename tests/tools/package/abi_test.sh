#!/usr/bin/env bash
# A program that was built with an earlier header of the same ZERO_ABI_VERSION N runs on this library. abi_N.h is the earliest such
# header, without comments. abidiff compares two libraries of empty functions, made of the two headers.
#   abi_test.sh HEADER ABI.h          the test
#   abi_test.sh --store HEADER        prints HEADER without comments, for a new abi_N.h
# What an older program cannot see is compatible: a new function, a new last enumerator, new last members of a struct that begins
# with struct_size. All else is not.
set -uo pipefail

without_comments() { gcc -fpreprocessed -dD -E -P -x c "$1"; } # HEADER
if [[ $1 == --store ]]; then
    without_comments "$2"
    exit
fi
header=$PWD/$1 stored=$PWD/$2
cd "$TEST_TMPDIR" || exit 1
if ! command -v abidiff >/dev/null; then
    echo "SKIPPED: no abidiff; install abigail-tools"
    exit 0
fi

# Prints NEW as a program sees it that was built with OLD: structs that only grew are those of OLD.
as_seen() { # OLD NEW
    awk '
        /^typedef struct zero_[a-z_]* {$/ { name = $3; body = ""; print; next }
        name != "" && $0 == "} " name ";" {
            if (NR == FNR) old[name] = body
            print (old[name] ~ /size_t struct_size;/ && index(body, old[name]) == 1 ? old[name] : body) $0
            name = ""; next
        }
        name != "" { body = body $0 "\n"; next }
        { print }' "$1" "$2" | tail -n "+$(($(wc -l <"$1") + 1))"
}

# Makes the library NAME.so of the header NAME.h. gcc lists the functions; unnamed parameters need gnu2x.
library() { # NAME
    gcc -std=c99 -aux-info "$1.functions" -fsyntax-only -x c "./$1.h" || return 1
    {
        echo "#include \"./$1.h\""
        sed -n 's/^.* extern \(.*zero_.*\);$/\1 { __builtin_trap(); }/p' "$1.functions"
    } >"$1.c"
    gcc -std=gnu2x -w -g -shared -fPIC "$1.c" -o "$1.so"
}

# 0: programs built with stored.h run on a library of new.h; `report` says what differs.
compatible() {
    as_seen stored.h new.h >seen.h && mv seen.h new.h && library new && abidiff --no-added-syms stored.so new.so >report 2>&1
}

without_comments "$stored" >stored.h && library stored || exit 1
failures=0
fail() { failures=$((failures + 1)) && echo "FAILED: $*" >&2; }

# ---- the comparison tells the two kinds apart ----

changed() { # SED NAME: makes new.h; as compatible
    sed "$1" stored.h >new.h
    ! cmp -s stored.h new.h || fail "the trial changed nothing: $2"
    compatible
}
breaks() { ! changed "$@" || fail "accepted: $2"; }
keeps() { changed "$@" || fail "refused: $2: $(cat report)"; }

breaks '/ zero_engine_prune(/d' "a function is gone"
breaks 's/uint64_t keep/uint32_t keep/' "a parameter has another type"
breaks 's/\(zero_kind kind, \)float \*out/\1double *out/' "a parameter points to another type"
breaks 's/^    uint64_t wire_bytes;/    uint64_t other;\n&/' "a member in the middle"
breaks 's/^    uint64_t wire_bytes;/    double wire_bytes;/; s/^} zero_counters;/    uint64_t other;\n&/' "a member of another type"
breaks 's/^} zero_span;/    uint64_t other;\n&/' "a last member of a struct without a size"
breaks 's/X(ZERO_E_PEER, 7,/X(ZERO_E_PEER, 17,/' "another number of an enumerator"
keeps 's/^const char \*zero_version(void);/&\nint zero_other(int);/' "a new function"
keeps 's/^} zero_counters;/    uint64_t other;\n&/' "a last member of a struct with a size"
keeps 's/ZERO_NVME } zero_tier;/ZERO_NVME, ZERO_OTHER } zero_tier;/' "a last enumerator"

# ---- the header ----

number() { sed -n 's/^#define ZERO_ABI_VERSION //p' "$1"; } # HEADER
without_comments "$header" >new.h
if [[ $(number new.h) != "$(number stored.h)" ]]; then
    fail "ZERO_ABI_VERSION is $(number new.h), and ${stored##*/} is of $(number stored.h): store the new header (see above)"
elif ! compatible; then
    cat report
    fail "a program that was built with ${stored##*/} breaks: move ZERO_ABI_VERSION, in //:BUILD and engine/exports.lds too, and" \
        "store the new header (see above)"
fi
((failures == 0))
