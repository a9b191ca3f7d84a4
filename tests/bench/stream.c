#include "tests/bench/stream.h"

#include <omp.h>
#include <stddef.h>
#include <string.h>

typedef void stream_loop(float *restrict a, float *restrict b, float *restrict c, const void *restrict source,
                         uint16_t *restrict target, uint64_t count, float keep, float add);

static inline uint16_t upper(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

#define STREAM_LOOP(name, attribute, arrays, type, has_target)                                               \
    attribute static void name(float *restrict a, float *restrict b, float *restrict c,                      \
                               const void *restrict source, uint16_t *restrict target, uint64_t count,       \
                               float keep, float add) {                                                      \
        const type *restrict s = source;                                                                     \
        for (uint64_t i = 0; i < count; i++) {                                                               \
            float g = (float)s[i] * add, x = a[i] * keep + g;                                                \
            a[i] = x;                                                                                        \
            if ((arrays) > 1) b[i] = b[i] * keep + g;                                                        \
            if ((arrays) > 2) c[i] = c[i] * keep + g;                                                        \
            if (has_target) target[i] = upper(x);                                                            \
        }                                                                                                    \
    }

#define STREAM_LOOPS(isa, attribute)                                                                         \
    STREAM_LOOP(one_##isa, attribute, 1, float, 0)                                                           \
    STREAM_LOOP(two_##isa, attribute, 2, float, 0)                                                           \
    STREAM_LOOP(three_##isa, attribute, 3, float, 0)                                                         \
    STREAM_LOOP(one_out_##isa, attribute, 1, float, 1)                                                       \
    STREAM_LOOP(two_out_##isa, attribute, 2, float, 1)                                                       \
    STREAM_LOOP(three_out_##isa, attribute, 3, float, 1)                                                     \
    STREAM_LOOP(one_half_##isa, attribute, 1, uint16_t, 1)                                                   \
    STREAM_LOOP(two_half_##isa, attribute, 2, uint16_t, 1)                                                   \
    STREAM_LOOP(three_half_##isa, attribute, 3, uint16_t, 1)

ISA_EACH(STREAM_LOOPS)

enum pattern { FP32, FP32_OUT, HALF_OUT, PATTERNS };

static stream_loop *const loops[PATTERNS][STREAM_ARRAYS_MAX][KERNEL_ISAS] = {
    [FP32] = {ISA_TABLE(one), ISA_TABLE(two), ISA_TABLE(three)},
    [FP32_OUT] = {ISA_TABLE(one_out), ISA_TABLE(two_out), ISA_TABLE(three_out)},
    [HALF_OUT] = {ISA_TABLE(one_half), ISA_TABLE(two_half), ISA_TABLE(three_half)},
};

void stream_run(const struct stream_args *args) {
    enum pattern pattern = args->source_bytes == 2 ? HALF_OUT : args->target ? FP32_OUT : FP32;
    stream_loop *loop = loops[pattern][args->array_count - 1][kernel_isa()];
#pragma omp parallel num_threads(args->threads)
    {
        uint64_t parts = (uint64_t)omp_get_num_threads(), me = (uint64_t)omp_get_thread_num();
        uint64_t lines = args->count / 64, first = lines * me / parts * 64;
        uint64_t end = me + 1 == parts ? args->count : lines * (me + 1) / parts * 64;
        loop(args->array[0] + first, args->array[1] ? args->array[1] + first : NULL,
             args->array[2] ? args->array[2] + first : NULL,
             (const char *)args->source + first * args->source_bytes,
             args->target ? args->target + first : NULL, end - first, args->keep, args->add);
    }
}
