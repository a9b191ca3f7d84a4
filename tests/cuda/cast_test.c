/* Casts, scaled and not, between all types, apart and in place, and the host program's gradients: the host's bits. */
#include "tests/check.h"
#include "tests/cuda/gpu.h"

#include "kernels/device_work.h"

static const uint64_t counts[] = {1, 2, 5, 1024, 1031};
static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* `skip` elements before the target, `skip` + 1 before the source. */
static void compare_cast(enum dtype to, enum dtype from, float factor, uint64_t count, uint64_t skip,
                         bool in_place, uint32_t rows) {
    uint64_t seed = count + skip;
    struct pair source = pair_new(count * dtype_bytes(from), (skip + 1) * dtype_bytes(from)),
                target = pair_new(count * dtype_bytes(to), skip * dtype_bytes(to));
    check_seed(seed);
    pair_fill(&source, from, &seed), pair_fill(&target, to, &seed);
    for (int side = ON_GPU; side >= ON_HOST; side--) {
        struct cast_scaled_argument a = {.target = at(in_place ? &source : &target, (enum side)side),
                                         .source = at(&source, (enum side)side),
                                         .count = rows ? count / 3 : count,
                                         .step = count / 3 + 1,
                                         .target_step = count / 3 + 2,
                                         .rows = rows,
                                         .factor = factor,
                                         .target_dtype = to,
                                         .source_dtype = from};
        run_on((enum side)side, &kernel_cast_scaled, &a);
    }
    if (!(pair_same(&target, "target") & pair_same(&source, "source")))
        fprintf(stderr, "  %s from %s, factor %g, %d elements at %d\n", dtype_name(to), dtype_name(from),
                (double)factor, (int)count, (int)skip);
    pair_free(&source), pair_free(&target);
}

static void compare_gradient(enum dtype dtype, bool add, uint64_t count, uint64_t skip) {
    uint64_t seed = count + skip, bytes = count * dtype_bytes(dtype), before = skip * dtype_bytes(dtype);
    struct pair gradient = pair_new(bytes, before), sum = pair_new(bytes, before);
    check_seed(seed);
    pair_fill(&gradient, dtype, &seed), pair_fill(&sum, dtype, &seed);
    for (int side = ON_GPU; side >= ON_HOST; side--) {
        struct gradient_take_argument a = {.sum = at(&sum, (enum side)side),
                                           .gradient = at(&gradient, (enum side)side),
                                           .count = count,
                                           .dtype = dtype,
                                           .add = add};
        run_on((enum side)side, &kernel_gradient_take, &a);
    }
    if (!pair_same(&sum, "sum"))
        fprintf(stderr, "  gradient of %s, add %d, %d elements at %d\n", dtype_name(dtype), add, (int)count,
                (int)skip);
    pair_free(&gradient), pair_free(&sum);
}

int main(void) {
    gpu_open();
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (uint64_t skip = 0; skip < 5; skip++)
            for (int t = 0; t < 3; t++) {
                for (int f = 0; f < 3; f++) {
                    compare_cast(dtypes[t], dtypes[f], 0, counts[c], skip, false, 0);
                    compare_cast(dtypes[t], dtypes[f], 0.37f, counts[c], skip, false, 0);
                    if (counts[c] > 2) compare_cast(dtypes[t], dtypes[f], 0.37f, counts[c], skip, false, 2);
                }
                compare_cast(dtypes[t], dtypes[t], -3.0f, counts[c], skip, true, 0);
                compare_gradient(dtypes[t], skip % 2, counts[c], skip / 2);
            }
    compare_cast(DTYPE_U8, DTYPE_U8, 0, 77, 1, false, 0);
    compare_cast(DTYPE_U8, DTYPE_U8, 0, 77, 1, false, 2);
    gpu_close();
    return check_end();
}
