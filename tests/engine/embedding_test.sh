#!/usr/bin/env bash
# The C blocks of engine/EMBEDDING.md, "From zero to trained", compile without a warning. Linked with host.c they train: all of them to
# the same weights, but for the one that brings its own optimizer. Each answer in the table of mistakes is expected by mistakes_test.c.
set -uo pipefail
document=$1 host=$2 mistakes=$3
failures=0
fail() { failures=$((failures + 1)) && echo "FAILED: $*" >&2; }
cd "$(dirname "$0")/../.." || exit 1

# ---- blocks: NAME.c for each heading ----
LC_ALL=C awk -v dir="$TEST_TMPDIR" '
    /^## / { inside = $0 == "## From zero to trained"; name = "train" }
    /^### / { name = tolower(substr($0, 5)); gsub(/[^a-z=+]+/, "_", name) }
    /^```c$/ { if (inside) { file = dir "/" name ".c"; print "#include \"tests/engine/embedding/host.h\"" >file
                             print "#line " NR + 1 " \"EMBEDDING.md\"" >file } next }
    /^```/ { file = "" }
    file { print >file }' "$document"
mkdir -p "$TEST_TMPDIR/stub"
cat >"$TEST_TMPDIR/stub/cuda_runtime.h" <<'STUB'
typedef struct CUstream_st *cudaStream_t;
int cudaSetDevice(int device);
STUB
read -ra mpi <<<"$(mpicc --showme:compile)"
read -ra mpi_link <<<"$(mpicc --showme:link)"
warnings=(-std=c11 -Wall -Wextra -Wno-unused-parameter -Werror)
blocks=("$TEST_TMPDIR"/*.c)
((${#blocks[@]} == 9)) || fail "${#blocks[@]} blocks: ${blocks[*]}"
for block in "${blocks[@]}"; do
    gcc "${warnings[@]}" -fopenmp -fsyntax-only -I. -isystem "$TEST_TMPDIR/stub" "${mpi[@]}" "$block" || fail "$block"
done

# The loop of vertical order stands alone.
{
    printf '%s\n' '#include "engine/zero.h"' 'enum { UNITS = 2 };' 'extern zero_unit *unit[UNITS];' 'void must(zero_status status);' \
        'void forward(int u, uint64_t micro), backward(int u, uint64_t micro);' 'void step(zero_engine *engine);' \
        'void step(zero_engine *engine) {'
    sed -n '/^## All micro-steps/,/^## [^A]/{/^```c$/,/^```$/p}' "$document" | grep -v '^```'
    echo '}'
} >"$TEST_TMPDIR/loop.c"
gcc "${warnings[@]}" -fsyntax-only -I. "$TEST_TMPDIR/loop.c" && grep -q zero_unit_next_micro "$TEST_TMPDIR/loop.c" || fail "the loop of vertical order"

# ---- runs ----
config() { # STAGE
    echo '{"train_batch_size": 2, "gradient_accumulation_steps": 2, "gradient_accumulation_mode": "every",
           "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": '"$1"'}}'
}
# weights BLOCK STAGE
weights() {
    case $1 in
    *mpi*) OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TMPDIR=$TEST_TMPDIR mpirun -np 1 "$1.run" "$(config "$2")" ;;
    *) "$1.run" "$(config "$2")" ;;
    esac
}
if grep -qE "__(asan|ubsan|tsan)_" <(nm -D libzero.so); then
    echo "the blocks are not run: libzero.so is built for a sanitizer"
    blocks=()
fi
ln -s "$PWD/libzero.so" "$TEST_TMPDIR/libzero.so.0" # its name at run time
# Code that names an object of MPI gives the program its own copy of it, and MPI uses that one.
cat >"$TEST_TMPDIR/objects.h" <<'OBJECTS'
#include <mpi.h>
static const void *volatile object;
static void __attribute__((constructor)) name_objects(void) {
    object = MPI_COMM_WORLD, object = MPI_BYTE, object = MPI_DATATYPE_NULL, object = MPI_FLOAT, object = MPI_UINT64_T;
    object = MPI_ERRORS_RETURN, object = MPI_MAX, object = MPI_SUM, object = MPI_REQUEST_NULL;
}
OBJECTS
# What follows train's last call prints the hash.
sed -i 's/^    zero_engine_destroy(engine);$/    void destroy(zero_engine *); destroy(engine);/' "$TEST_TMPDIR/train.c"
expected=""
for block in "${blocks[@]}"; do
    name=${block%.c}
    [[ $name == */train || $name == *cuda* ]] && continue
    [[ $name == *mpi* ]] && sed -i '1i #include "objects.h"' "$block"
    gcc "${warnings[@]}" -fopenmp -I. "${mpi[@]}" "$block" "$TEST_TMPDIR/train.c" "$host" -L. -lzero "${mpi_link[@]}" -lm \
        -Wl,-rpath,"$TEST_TMPDIR" -o "$name.run" || { fail "$name: does not link" && continue; }
    for stage in 1 3; do
        [[ $name == *arrays* && $stage == 3 ]] && continue
        hash=$(weights "$name" "$stage") || fail "$name, stage $stage: exit status $?"
        if [[ $name == *adamw* ]]; then
            own=${own:-$hash}
            [[ $hash && $hash == "$own" ]] || fail "$name, stage $stage: $hash, before $own"
        else
            expected=${expected:-$hash}
            [[ $hash && $hash == "$expected" ]] || fail "$name, stage $stage: $hash, before $expected"
        fi
    done
done

# ---- mistakes ----
answers=0
while IFS= read -r answer; do
    ((++answers))
    grep -qF -- "$answer" "$mistakes" || fail "no test expects the answer: $answer"
done < <(sed -n '/^## Mistakes$/,/^## /p' "$document" | sed -nE 's/^\|.*\| (``?)(.*)\1 \|$/\2/p' | sed 's/"/\\"/g')
((answers >= 10)) || fail "$answers answers in the table of mistakes"
((failures == 0))
