/* Sums one block of NORM_BLOCK_ELEMENTS after another, so that the accumulator stays in the first-level cache and
 * `written` finds the block still in this cache. One function body is compiled for the base instruction set, for AVX2
 * and for AVX-512. It uses only additions and integer operations, in the environment of float_env.h, so all three give
 * the same bits. */
#include "engine/comm/ordered.h"

#include <string.h>

#include "engine/base/limits.h"
#include "engine/base/numbers/convert.h"
#include "engine/base/numbers/float_env.h"
#include "engine/base/race.h"

#define INLINE static inline __attribute__((always_inline))

/* accumulator = input, or accumulator += input */
INLINE void take(float *restrict accumulator, const void *input, enum dtype dtype, uint64_t first,
                 uint64_t count, bool begin) {
    if (dtype == DTYPE_F32) {
        const float *x = (const float *)input + first;
        if (begin)
            memcpy(accumulator, x, count * sizeof *x);
        else
            for (uint64_t i = 0; i < count; i++) accumulator[i] += x[i];
        return;
    }
    const uint16_t *x = (const uint16_t *)input + first;
    if (dtype == DTYPE_BF16) {
        if (begin)
            for (uint64_t i = 0; i < count; i++) accumulator[i] = f32_from_bf16(x[i]);
        else
            for (uint64_t i = 0; i < count; i++) accumulator[i] += f32_from_bf16(x[i]);
    } else {
        if (begin)
            for (uint64_t i = 0; i < count; i++) accumulator[i] = f32_from_f16(x[i]);
        else
            for (uint64_t i = 0; i < count; i++) accumulator[i] += f32_from_f16(x[i]);
    }
}

INLINE void put(const float *restrict accumulator, void *target, enum dtype dtype, uint64_t first,
                uint64_t count, bool add) {
    if (dtype == DTYPE_F32) {
        float *y = (float *)target + first;
        if (!add)
            for (uint64_t i = 0; i < count; i++) y[i] = canonical(accumulator[i]);
        else
            for (uint64_t i = 0; i < count; i++) y[i] = canonical(y[i] + accumulator[i]);
        return;
    }
    uint16_t *restrict y = (uint16_t *)target + first;
    if (dtype == DTYPE_BF16 && !add)
        for (uint64_t i = 0; i < count; i++) y[i] = bf16_from_f32(canonical(accumulator[i]));
    else if (dtype == DTYPE_BF16)
        for (uint64_t i = 0; i < count; i++)
            y[i] = bf16_from_f32(canonical(f32_from_bf16(y[i]) + accumulator[i]));
    else if (!add)
        for (uint64_t i = 0; i < count; i++) y[i] = f16_from_f32(canonical(accumulator[i]));
    else
        for (uint64_t i = 0; i < count; i++)
            y[i] = f16_from_f32(canonical(f32_from_f16(y[i]) + accumulator[i]));
}

/* One contribution of fp32: target = input, or target + input. Element i is read before it is written, so the target may be the
 * input. */
INLINE void pass_block(const struct ordered *sum, uint64_t first, uint64_t count) {
    const float *x = (const float *)sum->inputs[0] + first;
    float *y = (float *)sum->target + first;
    if (sum->add)
        for (uint64_t i = 0; i < count; i++) y[i] = canonical(y[i] + x[i]);
    else
        for (uint64_t i = 0; i < count; i++) y[i] = canonical(x[i]);
}

INLINE void sum_block(const struct ordered *sum, uint64_t first, uint64_t count) {
    if (sum->input_count == 1 && sum->dtype == DTYPE_F32) {
        pass_block(sum, first, count);
        return;
    }
    _Alignas(ALIGN_BYTES) float accumulator[NORM_BLOCK_ELEMENTS], node[NORM_BLOCK_ELEMENTS];
    uint32_t inputs = sum->node_inputs ? sum->node_inputs : sum->input_count;
    for (uint32_t begin = 0; begin < sum->input_count; begin += inputs) {
        for (uint32_t rank = 0; rank < inputs; rank++)
            take(begin ? node : accumulator, sum->inputs[begin + rank], sum->dtype, first, count, rank == 0);
        if (begin) take(accumulator, node, DTYPE_F32, 0, count, false);
    }
    put(accumulator, sum->target, sum->target_dtype, first, count, sum->add);
}

typedef void (*block_fn)(const struct ordered *sum, uint64_t first, uint64_t count);

RACE_UNWATCHED static void block_base(const struct ordered *sum, uint64_t first, uint64_t count) {
    sum_block(sum, first, count);
}

#if defined(__x86_64__)
RACE_UNWATCHED __attribute__((target("avx2"))) static void block_avx2(const struct ordered *sum,
                                                                      uint64_t first, uint64_t count) {
    sum_block(sum, first, count);
}

RACE_UNWATCHED __attribute__((target("avx512f,avx512bw,avx512vl"))) static void
block_avx512(const struct ordered *sum, uint64_t first, uint64_t count) {
    sum_block(sum, first, count);
}

static block_fn best_block(void) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return block_avx512;
    return __builtin_cpu_supports("avx2") ? block_avx2 : block_base;
}
#else
static block_fn best_block(void) { return block_base; }
#endif

static void watch_block(const struct ordered *sum, uint64_t first, uint64_t count) {
    uint32_t bytes = dtype_bytes(sum->dtype), target_bytes = dtype_bytes(sum->target_dtype);
    for (uint32_t rank = 0; rank < sum->input_count; rank++)
        race_read((const char *)sum->inputs[rank] + first * bytes, count * bytes);
    race_write((char *)sum->target + first * target_bytes, count * target_bytes);
}

void ordered_sum(const struct ordered *sum) {
    /* volatile: forces the call through a pointer that float_env.h needs. */
    block_fn volatile block = best_block();
    float_env saved = float_env_enter();
    uint32_t target_bytes = dtype_bytes(sum->target_dtype);
    for (uint64_t first = 0; first < sum->count; first += NORM_BLOCK_ELEMENTS) {
        uint64_t left = sum->count - first;
        uint64_t count = left < NORM_BLOCK_ELEMENTS ? left : NORM_BLOCK_ELEMENTS;
        watch_block(sum, first, count);
        block(sum, first, count);
        if (sum->written)
            sum->written(sum->written_user, (const char *)sum->target + first * target_bytes, first, count);
    }
    float_env_leave(saved);
}
