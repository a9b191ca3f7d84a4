/* Codes, back from codes, and sums of several ranks' codes: the host's bits, wherever codes and elements begin. */
#include <math.h>

#include "tests/check.h"
#include "tests/cuda/gpu.h"

#include "kernels/device_work.h"
#include "kernels/quantize.h"
#include "tests/kernels/random.h"

enum { MEMBERS = 4 };

/* Blocks of ordinary numbers, of all zeros, of nearly nothing, with an inf or a NaN, and over many powers of two. */
static void fill_blocks(const struct pair *x, enum dtype dtype, uint64_t *seed) {
    for (uint64_t i = x->skip / dtype_bytes(dtype); i < x->bytes / dtype_bytes(dtype); i++) {
        uint64_t block = i / QUANTIZE_BLOCK;
        float value = random_uniform(seed) * (block % 5 == 1 ? 0 : block % 5 == 2 ? 0x1p-125f : 100);
        if (block % 5 == 4) value = ldexpf(value, -(int)(i % 20)); /* fp8's denormals and zeros, too */
        if (block % 5 == 3 && i % QUANTIZE_BLOCK == 77) value = block % 2 ? INFINITY : NAN;
        memcpy(x->host + i * dtype_bytes(dtype), (char *)&value + (dtype == DTYPE_F32 ? 0 : 2),
               dtype_bytes(dtype));
    }
    pair_upload(x);
}

static void quantize_both(const struct pair *code, uint64_t code_at, const struct pair *x, enum dtype dtype,
                          uint64_t count, enum code_format format, uint32_t rows) {
    for (int side = ON_GPU; side >= ON_HOST; side--) {
        struct quantize_codes_argument q = {.code = (char *)at(code, (enum side)side) + code_at,
                                            .source = at(x, (enum side)side),
                                            .count = count,
                                            .step = count + 1,
                                            .rows = rows,
                                            .dtype = dtype,
                                            .format = format};
        run_on((enum side)side, &kernel_quantize_codes, &q);
    }
}

static void dequantize_both(const struct pair *code, const struct pair *y, enum dtype dtype, uint64_t count,
                            enum code_format format, uint32_t rows) {
    for (int side = ON_GPU; side >= ON_HOST; side--) {
        struct dequantize_codes_argument d = {.target = at(y, (enum side)side),
                                              .code = at(code, (enum side)side),
                                              .count = count,
                                              .step = count + 1,
                                              .rows = rows,
                                              .dtype = dtype,
                                              .format = format};
        run_on((enum side)side, &kernel_dequantize_codes, &d);
    }
}

static void sum_both(const struct pair *code, const struct pair *y, enum dtype dtype, uint64_t count,
                     enum code_format format, bool add, uint32_t node_members) {
    for (int side = ON_GPU; side >= ON_HOST; side--) {
        struct dequantize_sum_argument m = {.target = at(y, (enum side)side),
                                            .codes = at(code, (enum side)side),
                                            .count = count,
                                            .members = MEMBERS,
                                            .node_members = node_members,
                                            .dtype = dtype,
                                            .format = format,
                                            .add = add};
        run_on((enum side)side, &kernel_dequantize_sum, &m);
    }
}

static void compare(enum dtype dtype, enum code_format format, uint64_t count, uint64_t skip) {
    uint64_t seed = count + skip, each = quantize_bytes(count, format);
    struct pair x = pair_new(count * dtype_bytes(dtype), skip * dtype_bytes(dtype)),
                code = pair_new(each * MEMBERS, skip), y = pair_new(count * 4, skip * 4);
    check_seed(seed);
    pair_fill(&code, DTYPE_U8, &seed);
    pair_fill(&y, DTYPE_F32, &seed);
    for (uint64_t m = 0; m < MEMBERS; m++) {
        if (m == 1)
            pair_fill(&x, dtype, &seed);
        else
            fill_blocks(&x, dtype, &seed);
        quantize_both(&code, m * each, &x, dtype, count, format, 0);
    }
    int same = pair_same(&code, "code");
    dequantize_both(&code, &y, dtype, count, format, 0);
    same &= pair_same(&y, "values");
    sum_both(&code, &y, dtype, count, format, false, 2);
    same &= pair_same(&y, "sum");
    sum_both(&code, &y, dtype, count, format, true, 0);
    same &= pair_same(&y, "sum, added");
    uint64_t row = count / 3; /* two rows, with an element between them */
    if (row)
        quantize_both(&code, 0, &x, dtype, row, format, 2), dequantize_both(&code, &y, dtype, row, format, 2);
    same &= pair_same(&code, "codes of rows") & pair_same(&y, "values of rows");
    if (!same)
        fprintf(stderr, "  %s, %s, %d elements at %d\n", dtype_name(dtype), code_format_name(format),
                (int)count, (int)skip);
    pair_free(&x), pair_free(&code), pair_free(&y);
}

int main(void) {
    static const uint64_t counts[] = {1, 7, 255, 256, 257, 2561};
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    gpu_open();
    for (int d = 0; d < 3; d++)
        for (enum code_format format = CODE_INT4; format < CODE_FORMATS; format++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                for (uint64_t skip = 0; skip < 5; skip++) compare(dtypes[d], format, counts[c], skip);
    gpu_close();
    return check_end();
}
