#!/usr/bin/env bash
# What tools/install leaves is all that a program needs: the examples build with make and with CMake, a C++ program with the static
# library, and they run. The library shows the functions of zero.h, and needs no MPI and no C++ library.
#   install_test.sh INSTALL
set -uo pipefail
install=$PWD/$1 source=$(readlink -f README.md) links=0
cd "$TEST_TMPDIR" || exit 1
failures=0 lacking=()
fail() { failures=$((failures + 1)) && echo "FAILED: $*" >&2; }
equal() { [[ $1 == "$2" ]] || fail "$3: $1, expected $2"; } # SEEN EXPECTED WHAT
has() { command -v "$1" >/dev/null || { lacking+=("$1") && false; }; }

# ---- the files ----

DESTDIR=$PWD/destination "$install" /opt/zero || exit 1
mv destination/opt/zero prefix && rmdir destination/opt destination || fail "files outside of DESTDIR/PREFIX"
prefix=$PWD/prefix # another place than it was installed for
listed=$("$install" --list | sort)
equal "$(cd prefix && find . ! -type d -printf '%P\n' | sort)" "$listed" "files"

library=prefix/lib/libzero.so.0
if [[ $(nm -D "$library" | grep -cE "__(asan|ubsan|tsan)_") != 0 ]]; then
    ((failures == 0)) || exit 1
    echo "SKIPPED: the library is built for a sanitizer, and a plain program lacks the sanitizer's runtime"
    exit 0
fi

# ---- the library ----

needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -v '^ld-linux' | sed 's/\.so.*//' | sort | paste -sd ' '; }
number() { sed -n "s/^#define ZERO_$1 //p" prefix/include/zero/zero.h; }
abi=$(number ABI_VERSION)
equal "$(needed "$library")" "libc libgomp libjson-c libm libsodium liburing" "what libzero.so needs"
equal "$(needed prefix/bin/zero)" "libc libdnnl libgomp libjson-c libm libsodium liburing" "what the command needs"
equal "$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')" "libzero.so.$abi" "SONAME"
gcc -std=c99 -aux-info functions -fsyntax-only -x c prefix/include/zero/zero.h
functions=$(sed -n 's/^.*zero\.h:.* extern .*[ *]\(zero_[a-z0-9_]*\) (.*/\1/p' functions | sort)
equal "$(nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort)" "$(sed "s/\$/@@ZERO_$abi/" <<<"$functions")" \
    "functions of libzero.so"
equal "$(nm -g --defined-only prefix/lib/libzero.a | awk 'NF == 3 { print $3 }' | sort)" "$functions" "functions of libzero.a"
# glibc 2.32 to 2.34 gave old functions new versions. A function that is new since 2.31 would keep the source from building there.
moved='dlclose|dlerror|dlopen|dlsym|fstat|fstatat|lstat|stat|sem_(destroy|init|post|wait)|'
moved+='pthread_(condattr_setclock|create|join|key_create|key_delete|mutexattr_(init|destroy|settype)|once|setspecific|sigmask)'
moved+='|__isoc23_[a-z]+' # the names that headers of 2.38 give to scanf and strtoul
equal "$(objdump -T "$library" | sed -n 's/.*(GLIBC_2\.3[2-9][.0-9]*) *//p' | grep -vxE "$moved")" "" "functions newer than glibc 2.31"
version=$(number VERSION_MAJOR).$(number VERSION_MINOR).$(number VERSION_PATCH)
equal "$(prefix/bin/zero --version | head -n 1)" "zero $version" "version"
commit=$(prefix/bin/zero --version | sed -n 's/^commit *//p')
known=$(git -c safe.directory='*' -C "$(dirname "$source")" rev-parse --short=12 HEAD 2>/dev/null)
[[ -e ${source%/*}/.git && $known ]] || known=unknown
[[ $commit == *"$known"* ]] || fail "the commit is $commit, expected $known"

# ---- documents ----

# A document names no file that is not installed: each link leads to one.
doc=$prefix/share/doc/zero
while IFS=: read -r document link; do
    target=$(dirname "$document")/${link%%#*}
    [[ $link == *://* || $link == '#'* || -f $target ]] || fail "${document#"$doc/"}: the link to $link leads to no file"
    ((++links))
done < <(grep -roE --include='*.md' '\]\([^)]+\)' "$doc" | sed 's/:](/:/; s/)$//')
((links > 100)) || fail "$links links in documents"
grep -q "^Licence: " "$doc/copyright" || fail "the copyright file names no licence"
said=$(PYTHON=python3 prefix/bin/zero-tokenize missing out.bin app.c 2>&1) && fail "zero-tokenize without a tokenizer: $said"
[[ $said == *"tools/tokenize: "* ]] || fail "zero-tokenize: $said"

# ---- programs ----

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
cat >app.c <<'APP'
#include <stdio.h>
#include <zero/zero.h>
int main(void) {
    zero_engine *engine = zero_engine_init("{\"train_batch_size\": 1}");
    if (!engine) return fprintf(stderr, "%s\n", zero_last_error()), 1;
    zero_status status = zero_engine_step(engine, NULL);
    zero_engine_destroy(engine);
    return status != ZERO_E_ORDER || zero_abi_version() != ZERO_ABI_VERSION;
}
APP
strict=(-Wall -Wextra -Wpedantic -Wconversion -Werror -O1)
build_app() { # COMPILER...: the flags of the library are words
    # shellcheck disable=SC2046
    "$@" "${strict[@]}" -o app $flags && ./app || fail "$*"
}
has pkg-config && {
    flags="app.c -x none $(pkg-config --cflags --libs zero) -Wl,-rpath,$prefix/lib"
    build_app gcc -std=c99
    build_app g++ -x c++ -std=c++17
    flags="app.c -x none $(pkg-config --cflags --libs --static zero)"
    build_app gcc -static 2>log || fail "$(cat log)" # the linker warns that dlopen needs the same C library at run time
    flags=${flags/-lzero/-l:libzero.a}
    build_app g++ -x c++ -std=c++17
    [[ $(needed app) != *libzero* ]] || fail "a static program needs $(needed app)"
}

# The examples, where MPI's library cannot be loaded.
mkdir no_mpi && : >no_mpi/libmpi.so.40
weights() { LD_LIBRARY_PATH=$PWD/no_mpi "$@" --width 32 --blocks 2 --batch 4 --steps 4 | sed -n 's/^weights //p'; }
examples=prefix/share/zero/examples
has make && has pkg-config && {
    make --silent -C "$examples" >log 2>&1 || fail "make: $(cat log)"
    threads=$(weights "$examples/mlp" --ranks 2)
    export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000))
    RANK=1 weights "$examples/mlp" >other &
    processes=$(RANK=0 weights "$examples/mlp")
    wait $! || fail "rank 1 of 2"
    unset WORLD_SIZE MASTER_ADDR MASTER_PORT
    [[ $threads ]] || fail "the example printed no weights"
    equal "$processes" "$threads" "weights of two processes, beside two threads"
    alone=$(weights "$examples/mlp")
    clicks=$(LD_LIBRARY_PATH=$PWD/no_mpi "$examples/deep_wide" --ranks 2 --steps 20) || fail "deep_wide: exit status $?"
    [[ $clicks == *weights* ]] || fail "the example in C++ printed $clicks"
}
has cmake && {
    { cmake -S "$examples" -B cmake -DCMAKE_PREFIX_PATH="$prefix" && cmake --build cmake; } >log 2>&1 || fail "CMake: $(cat log)"
    built=$(weights cmake/mlp)
    equal "$built" "${alone-$built}" "weights of the example that CMake built"
    built=$(cmake/deep_wide --ranks 2 --steps 20)
    equal "$built" "${clicks-$built}" "what the example in C++ prints that CMake built"
}

# A program of MPI shares its library with the engine.
cat >host.c <<'HOST'
#include <mpi.h>
#include <stdio.h>
#include <zero/zero.h>
int main(int argc, char **argv) {
    int level, odd, ranks;
    MPI_Comm half;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &odd);
    MPI_Comm_split(MPI_COMM_WORLD, odd %= 2, 0, &half);
    MPI_Comm_size(half, &ranks);
    zero_runtime runtime = {.struct_size = sizeof runtime, .mpi_comm = &half};
    zero_engine *engine = zero_engine_init_with("{\"train_micro_batch_size_per_gpu\": 1}", &runtime);
    if (!engine) return fprintf(stderr, "%s\n", zero_last_error()), 1;
    printf("%u of %d\n", zero_engine_size(engine), ranks);
    zero_engine_destroy(engine);
    MPI_Comm_free(&half);
    return MPI_Finalize();
}
HOST
has mpicc && has pkg-config && {
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TMPDIR=$PWD
    # shellcheck disable=SC2046
    mpicc host.c $(pkg-config --cflags --libs zero) -Wl,-rpath,"$prefix/lib" -o host || fail "a program of MPI does not build"
    said=$(mpirun --bind-to none --oversubscribe -n 3 ./host 2>&1 | sort | paste -sd,)
    equal "$said" "1 of 1,2 of 2,2 of 2" "ranks of MPI_Comm_split"
}

# ---- packages and pages ----

paths() { grep -v '/$' | sed 's|^[^/]*/||; s|^usr/||; s| -> .*||' | sort; }
has dpkg-shlibdeps && {
    mkdir failing && printf '#!/bin/sh\nexit 1\n' >failing/dpkg-shlibdeps && chmod +x failing/dpkg-shlibdeps
    PATH=$PWD/failing:$PATH "$install" --deb failed.deb 2>/dev/null && fail "--deb: a package of unknown dependencies"
    [[ ! -e failed.deb ]] || fail "--deb wrote a package of unknown dependencies"
    DPKG_DEB_COMPRESSOR_LEVEL=0 "$install" --deb zero.deb || fail "--deb"
    equal "$(dpkg-deb -c zero.deb | sed 's/^.* \.\//.\//' | paths)" "$({ echo "$listed" && echo share/doc/zero/changelog.gz; } | sort)" \
        "files of the .deb"
    dpkg-deb --fsys-tarfile zero.deb | tar -xO ./usr/share/doc/zero/changelog.gz | gunzip >changelog
    equal "$(dpkg-parsechangelog -l changelog -S Version 2>&1)" "$version" "the changelog's version, without a warning"
    for package in $(dpkg-deb -f zero.deb Suggests | tr -d ,); do
        dpkg-query -W "$package" >/dev/null 2>&1 || fail "the .deb suggests $package, which this system does not have"
    done
    depends=$(dpkg-deb -f zero.deb Depends)
    [[ $depends == *libjson-c* && $depends == *libdnnl* && $depends != *mpi* ]] || fail "the .deb depends on $depends"
}
"$install" --tar zero.tar || fail "--tar"
equal "$(tar -tf zero.tar | paths)" "$listed" "files of the archive"
has groff && equal "$(groff -ww -man -Tutf8 -z prefix/share/man/man*/* 2>&1)" "" "warnings of manual pages"
for name in $functions; do
    grep -q "$name(" "prefix/share/man/man3/$name.3" || fail "$name has no manual page"
done

"$install" 2>/dev/null && fail "no PREFIX was accepted"
((failures == 0)) || exit 1
[[ ${#lacking[@]} == 0 ]] || echo "SKIPPED: parts of it, for this machine lacks ${lacking[*]}"
