/* Sums of squares by blocks, and their total: the host's bits. */
#include "tests/check.h"
#include "tests/cuda/gpu.h"

#include "engine/base/limits.h"
#include "kernels/device_work.h"
#include "tests/kernels/random.h"

static uint64_t blocks_of(uint64_t count) { return (count + NORM_BLOCK_ELEMENTS - 1) / NORM_BLOCK_ELEMENTS; }

/* Where everything is NaN no order of additions shows. */
static void fill_ordinary(const struct pair *p, enum dtype dtype, uint64_t *seed) {
    for (uint64_t i = 0; i < p->bytes / dtype_bytes(dtype); i++) {
        float x = random_uniform(seed);
        memcpy(p->host + i * dtype_bytes(dtype), (char *)&x + (dtype == DTYPE_F32 ? 0 : 2),
               dtype_bytes(dtype));
    }
    pair_upload(p);
}

static void compare(enum dtype dtype, uint64_t count, uint64_t skip, bool any) {
    uint64_t seed = count + skip, blocks = blocks_of(count);
    struct pair x = pair_new(count * dtype_bytes(dtype), skip * dtype_bytes(dtype)),
                sums = pair_new(blocks * sizeof(double), 0), total = pair_new(sizeof(double), 0);
    check_seed(seed);
    (any ? pair_fill : fill_ordinary)(&x, dtype, &seed);
    for (int side = ON_GPU; side >= ON_HOST; side--) {
        struct norm_blocks_argument a = {.elements = at(&x, (enum side)side),
                                         .sums = at(&sums, (enum side)side),
                                         .count = count,
                                         .dtype = dtype};
        struct norm_total_argument t = {
            .sums = at(&sums, (enum side)side), .total = at(&total, (enum side)side), .count = blocks};
        run_on((enum side)side, &kernel_norm_blocks, &a);
        run_on((enum side)side, &kernel_norm_total, &t);
    }
    if (!(pair_same(&sums, "sums") & pair_same(&total, "total")))
        fprintf(stderr, "  %s, %d elements at %d\n", dtype_name(dtype), (int)count, (int)skip);
    pair_free(&x), pair_free(&sums), pair_free(&total);
}

int main(void) {
    static const uint64_t counts[] = {1, 15, 16, 4095, 4096, 4097, 20000};
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    gpu_open();
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int d = 0; d < 3; d++)
            for (uint64_t skip = 0; skip < 3; skip++)
                for (int any = 0; any < 2; any++) compare(dtypes[d], counts[c], skip, any);
    compare(DTYPE_BF16, 2100 * (uint64_t)NORM_BLOCK_ELEMENTS, 0, false); /* totals in more than one piece */
    gpu_close();
    return check_end();
}
