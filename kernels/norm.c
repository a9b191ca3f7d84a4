#include "kernels/norm.h"

#include <string.h>

#include "engine/base/limits.h"
#include "engine/base/numbers/convert.h"
#include "engine/base/numbers/float_env.h"
#include "kernels/cast.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { LANES = 16, WIDEN_ELEMENTS = 512 };
_Static_assert(NORM_BLOCK_ELEMENTS % WIDEN_ELEMENTS == 0 && WIDEN_ELEMENTS % LANES == 0, "rounds stay whole");

/* Adds the squares of `rounds` times 16 elements to the lanes. The vector forms may fuse multiply and add: the square
 * is exact in double, so a fused operation rounds to the same sum. */
typedef void norm_rounds(double lanes[LANES], const float *elements, uint64_t rounds);

#define PLAIN_ROUNDS(isa, attribute)                                                                         \
    attribute static void rounds_##isa(double lanes[LANES], const float *elements, uint64_t rounds) {        \
        double sum[LANES];                                                                                   \
        memcpy(sum, lanes, sizeof sum);                                                                      \
        for (; rounds; rounds--, elements += LANES)                                                          \
            for (int k = 0; k < LANES; k++) sum[k] += (double)elements[k] * (double)elements[k];             \
        memcpy(lanes, sum, sizeof sum);                                                                      \
    }

PLAIN_ROUNDS(scalar, ISA_TARGET_SCALAR)
#if defined(__aarch64__)
PLAIN_ROUNDS(neon, ISA_TARGET_NEON) /* gcc's vector code for it needs no help */
#elif defined(__x86_64__)
ISA_TARGET_AVX2 static void rounds_avx2(double lanes[LANES], const float *elements, uint64_t rounds) {
    __m256d sum[4];
    for (int k = 0; k < 4; k++) sum[k] = _mm256_loadu_pd(lanes + 4 * k);
    for (; rounds; rounds--, elements += LANES)
        for (int k = 0; k < 4; k++) {
            __m256d x = _mm256_cvtps_pd(_mm_loadu_ps(elements + 4 * k));
            sum[k] = _mm256_fmadd_pd(x, x, sum[k]);
        }
    for (int k = 0; k < 4; k++) _mm256_storeu_pd(lanes + 4 * k, sum[k]);
}

ISA_TARGET_AVX512 static void rounds_avx512(double lanes[LANES], const float *elements, uint64_t rounds) {
    __m512d low = _mm512_loadu_pd(lanes), high = _mm512_loadu_pd(lanes + 8);
    for (; rounds; rounds--, elements += LANES) {
        __m512d x = _mm512_cvtps_pd(_mm256_loadu_ps(elements)),
                y = _mm512_cvtps_pd(_mm256_loadu_ps(elements + 8));
        low = _mm512_fmadd_pd(x, x, low);
        high = _mm512_fmadd_pd(y, y, high);
    }
    _mm512_storeu_pd(lanes, low);
    _mm512_storeu_pd(lanes + 8, high);
}
#endif

static norm_rounds *const rounds_by_isa[KERNEL_ISAS] = ISA_TABLE(rounds);

static double add_tree(double lanes[LANES]) {
    for (int half = LANES / 2; half; half /= 2)
        for (int k = 0; k < half; k++) lanes[k] += lanes[k + half];
    return canonical_f64(lanes[0]);
}

static void add_fp32(enum kernel_isa isa, double lanes[LANES], const float *elements, uint64_t count) {
    uint64_t whole = count / LANES, rest = count % LANES;
    rounds_by_isa[isa](lanes, elements, whole);
    if (!rest) return;
    float last[LANES] = {0}; /* adding 0.0 to a sum of squares changes nothing */
    memcpy(last, elements + whole * LANES, rest * sizeof *last);
    rounds_by_isa[isa](lanes, last, 1);
}

/* Must run in the kernels' floating-point environment. */
static double block(enum kernel_isa isa, const void *elements, enum dtype dtype, uint64_t count) {
    double lanes[LANES] = {0};
    if (dtype == DTYPE_F32) {
        add_fp32(isa, lanes, elements, count);
        return add_tree(lanes);
    }
    float wide[WIDEN_ELEMENTS];
    const uint16_t *narrow = elements;
    for (uint64_t i = 0; i < count; i += WIDEN_ELEMENTS) {
        uint64_t n = count - i < WIDEN_ELEMENTS ? count - i : WIDEN_ELEMENTS;
        cast_isa(isa, wide, DTYPE_F32, narrow + i, dtype, n);
        add_fp32(isa, lanes, wide, n);
    }
    return add_tree(lanes);
}

static double more(double sum, enum kernel_isa isa, const void *elements, enum dtype dtype, uint64_t count) {
    const char *bytes = elements;
    for (uint64_t i = 0; i < count; i += NORM_BLOCK_ELEMENTS) {
        uint64_t n = count - i < NORM_BLOCK_ELEMENTS ? count - i : NORM_BLOCK_ELEMENTS;
        sum += block(isa, bytes + i * dtype_bytes(dtype), dtype, n);
    }
    return canonical_f64(sum);
}

/* volatile: the compiler cannot inline these calls, so no arithmetic moves out of the environment (float_env.h). */
typedef double norm_fn(enum kernel_isa, const void *, enum dtype, uint64_t);
typedef double more_fn(double, enum kernel_isa, const void *, enum dtype, uint64_t);
static norm_fn *const volatile block_in_env = block;
static more_fn *const volatile more_in_env = more;

double norm_block_isa(enum kernel_isa isa, const void *elements, enum dtype dtype, uint64_t count) {
    float_env saved = float_env_enter();
    double sum = block_in_env(isa, elements, dtype, count);
    float_env_leave(saved);
    return sum;
}

double norm_block(const void *elements, enum dtype dtype, uint64_t count) {
    return norm_block_isa(kernel_isa(), elements, dtype, count);
}

double norm_more(double sum, const void *elements, enum dtype dtype, uint64_t count) {
    float_env saved = float_env_enter();
    double all = more_in_env(sum, kernel_isa(), elements, dtype, count);
    float_env_leave(saved);
    return all;
}
