#!/bin/sh
# A program that Bazel does not build: engine/zero.h compiles as C and as C++, and libzero.so is all it needs.
set -eu
if nm -D libzero.so | grep -qE "__(asan|ubsan|tsan)_"; then
    echo "SKIPPED: the library is built for a sanitizer, and a plain program lacks the sanitizer's runtime"
    exit 0
fi
cat > "$TEST_TMPDIR/app.c" <<'APP'
#include <stdio.h>
#include "engine/zero.h"
int main(void) {
    zero_engine *engine = zero_engine_init("{\"train_batch_size\": 1}");
    if (!engine) return fprintf(stderr, "%s\n", zero_last_error()), 1;
    zero_status status = zero_engine_step(engine, NULL);
    printf("%s: %s\n", zero_status_name(status), zero_last_error());
    zero_engine_destroy(engine);
    return status != ZERO_E_ORDER;
}
APP
for compiler in "gcc -std=c11" "g++ -x c++ -std=c++11"; do
    $compiler -Wall -Wextra -Werror -I. "$TEST_TMPDIR/app.c" -x none -L. -lzero -Wl,-rpath,"$PWD" -o "$TEST_TMPDIR/app"
    "$TEST_TMPDIR/app"
done
