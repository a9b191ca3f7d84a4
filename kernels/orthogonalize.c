#include "kernels/orthogonalize.h"

#include <math.h>
#include <stddef.h>
#if defined(_OPENMP)
#include <omp.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "engine/base/convert.h"
#include "engine/base/float_env.h"

/* The coefficients of torch.optim.Muon. */
static const float coefficient_a = 3.4445f, coefficient_b = -4.775f, coefficient_c = 2.0315f;

enum { TILE_ROWS = 6, LANES = 8, SIDE = 32 /* of a block that is transposed */ };

/* out = alpha * A B + beta * D, row by row; D NULL: out = A B. */
struct product {
    const float *a, *b, *d;
    float *out;
    uint64_t rows, inner, columns;
    float alpha, beta;
    bool bf16;
};

static float rounded(float x, bool bf16) { return bf16 ? f32_from_bf16(bf16_from_f32(x)) : x; }

static void finish(const struct product *p, uint64_t i, uint64_t j, float sum) {
    uint64_t at = i * p->columns + j;
    p->out[at] = rounded(p->d ? fmaf(p->alpha, sum, p->beta * p->d[at]) : sum, p->bf16);
}

/* ---- tiles: some rows by some columns of the product ---- */

#define EDGE(isa, attribute)                                                                                 \
    attribute static void edge_##isa(const struct product *p, uint64_t i, uint64_t rows, uint64_t j,         \
                                     uint64_t columns) {                                                     \
        for (uint64_t r = i; r < i + rows; r++)                                                              \
            for (uint64_t c = j; c < j + columns; c++) {                                                     \
                float sum = 0;                                                                               \
                for (uint64_t k = 0; k < p->inner; k++)                                                      \
                    sum = fmaf(p->a[r * p->inner + k], p->b[k * p->columns + c], sum);                       \
                finish(p, r, c, sum);                                                                        \
            }                                                                                                \
    }

/* TILE_ROWS rows by two vectors of columns, in registers. */
#define TILE(isa, attribute, vector, lanes, zero, load, store, splat, fma)                                   \
    attribute static void tile_##isa(const struct product *p, uint64_t i, uint64_t j) {                      \
        vector sum[TILE_ROWS][2];                                                                            \
        float out[2 * (lanes)];                                                                              \
        _Pragma("GCC unroll 8") for (int r = 0; r < TILE_ROWS; r++) sum[r][0] = sum[r][1] = zero();          \
        for (uint64_t k = 0; k < p->inner; k++) {                                                            \
            const float *b = p->b + k * p->columns + j, *a = p->a + i * p->inner + k;                        \
            vector b0 = load(b), b1 = load(b + (lanes));                                                     \
            _Pragma("GCC unroll 8") for (int r = 0; r < TILE_ROWS; r++) {                                    \
                vector one = splat(a[(uint64_t)r * p->inner]);                                               \
                sum[r][0] = fma(one, b0, sum[r][0]);                                                         \
                sum[r][1] = fma(one, b1, sum[r][1]);                                                         \
            }                                                                                                \
        }                                                                                                    \
        for (int r = 0; r < TILE_ROWS; r++) {                                                                \
            store(out, sum[r][0]), store(out + (lanes), sum[r][1]);                                          \
            for (int c = 0; c < 2 * (lanes); c++) finish(p, i + (uint64_t)r, j + (uint64_t)c, out[c]);       \
        }                                                                                                    \
    }

/* Rows [first, end) of the product: columns by columns, so that these of B stay in the cache. */
#define ROWS(isa, width, tile)                                                                               \
    static void rows_##isa(const struct product *p, uint64_t first, uint64_t end) {                          \
        for (uint64_t j = 0, n; j < p->columns; j += n) {                                                    \
            n = p->columns - j < (width) ? p->columns - j : (width);                                         \
            for (uint64_t i = first, m; i < end; i += m) {                                                   \
                m = end - i < TILE_ROWS ? end - i : TILE_ROWS;                                               \
                if (m == TILE_ROWS && n == (width))                                                          \
                    tile(p, i, j);                                                                           \
                else                                                                                         \
                    edge_##isa(p, i, m, j, n);                                                               \
            }                                                                                                \
        }                                                                                                    \
    }

EDGE(scalar, ISA_TARGET_SCALAR)
static void tile_scalar(const struct product *p, uint64_t i, uint64_t j) {
    edge_scalar(p, i, TILE_ROWS, j, 2 * LANES);
}
ROWS(scalar, 2 * LANES, tile_scalar)
#if defined(__x86_64__)
EDGE(avx2, ISA_TARGET_AVX2)
TILE(avx2, ISA_TARGET_AVX2, __m256, 8, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps,
     _mm256_fmadd_ps)
ROWS(avx2, 16, tile_avx2)
EDGE(avx512, ISA_TARGET_AVX512)
TILE(avx512, ISA_TARGET_AVX512, __m512, 16, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps,
     _mm512_set1_ps, _mm512_fmadd_ps)
ROWS(avx512, 32, tile_avx512)
#elif defined(__aarch64__)
#define NEON_ZERO() vdupq_n_f32(0)
#define NEON_FMA(a, b, sum) vfmaq_f32(sum, a, b)
EDGE(neon, ISA_TARGET_NEON)
TILE(neon, ISA_TARGET_NEON, float32x4_t, 4, NEON_ZERO, vld1q_f32, vst1q_f32, vdupq_n_f32, NEON_FMA)
ROWS(neon, 8, tile_neon)
#endif

typedef void rows_fn(const struct product *p, uint64_t first, uint64_t end);
static rows_fn *const rows_of[KERNEL_ISAS] = ISA_TABLE(rows);

/* ---- products ---- */

static void multiply_part(enum kernel_isa isa, const struct product *p, uint64_t part, uint64_t parts) {
    uint64_t tiles = (p->rows + TILE_ROWS - 1) / TILE_ROWS, end = tiles * (part + 1) / parts * TILE_ROWS;
    float_env saved = float_env_enter();
    rows_of[isa](p, tiles * part / parts * TILE_ROWS, end < p->rows ? end : p->rows);
    float_env_leave(saved);
}

/* The OpenMP runtime may grant fewer threads than asked. */
static void multiply(enum kernel_isa isa, const struct product *p, uint32_t threads) {
#if defined(_OPENMP)
    enum { SMALL = 1 << 16 /* multiplications that are not worth a second thread */ };
    if (threads > 1 && p->rows * p->inner * p->columns > SMALL) {
#pragma omp parallel num_threads(threads)
        multiply_part(isa, p, (uint64_t)omp_get_thread_num(), (uint64_t)omp_get_num_threads());
        return;
    }
#endif
    multiply_part(isa, p, 0, 1);
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* out[j][i] = factor * in[i][j] */
static void transpose(float *out, const float *in, uint64_t rows, uint64_t columns, float factor) {
    for (uint64_t i = 0; i < rows; i += SIDE)
        for (uint64_t j = 0; j < columns; j += SIDE)
            for (uint64_t r = i; r < least(i + SIDE, rows); r++)
                for (uint64_t c = j; c < least(j + SIDE, columns); c++)
                    out[c * rows + r] = factor * in[r * columns + c];
}

/* ---- the iteration ---- */

/* The Frobenius norm, of eight sums in double in a fixed order. */
static float norm_of(const float *x, uint64_t count) {
    double sum[LANES] = {0}, all = 0;
    for (uint64_t i = 0; i < count; i++) sum[i % LANES] += (double)x[i] * (double)x[i];
    for (int l = 0; l < LANES; l++) all += sum[l];
    return (float)sqrt(all);
}

static void normalize(float *x, uint64_t count, const struct orthogonalize_options *o) {
    for (uint64_t i = 0; i < count && o->bf16; i++) x[i] = rounded(x[i], true);
    float norm = rounded(norm_of(x, count), o->bf16);
    if (norm < o->eps) norm = rounded(o->eps, o->bf16);
    for (uint64_t i = 0; i < count; i++) x[i] = rounded(x[i] / norm, o->bf16);
}

uint64_t orthogonalize_scratch(uint64_t rows, uint64_t columns) {
    uint64_t side = least(rows, columns);
    return 2 * rows * columns + 2 * side * side;
}

double orthogonalize_flops(uint64_t rows, uint64_t columns) {
    double side = (double)least(rows, columns), all = (double)rows * (double)columns;
    return 2 * side * (2 * all + side * side);
}

void orthogonalize_isa(enum kernel_isa isa, float *matrix, uint64_t rows, uint64_t columns,
                       const struct orthogonalize_options *o, float *scratch, uint32_t threads) {
    bool tall = rows > columns;
    uint64_t m = tall ? columns : rows, n = tall ? rows : columns;
    float *x = scratch, *y = x + m * n, *g = y + m * n, *h = g + m * m;
    float_env saved = float_env_enter();
    normalize(matrix, m * n, o);
    if (tall) transpose(x, matrix, rows, columns, 1);
    for (uint64_t i = 0; i < m * n && !tall; i++) x[i] = matrix[i];
    for (uint32_t step = 0; step < o->steps; step++) {
        transpose(y, x, m, n, 1);
        multiply(isa, &(struct product){x, y, NULL, g, m, n, m, 1, 0, o->bf16}, threads);
        multiply(isa, &(struct product){g, g, g, h, m, m, m, coefficient_c, coefficient_b, o->bf16}, threads);
        multiply(isa, &(struct product){h, x, x, y, m, m, n, 1, coefficient_a, o->bf16}, threads);
        float *other = x;
        x = y, y = other;
    }
    if (tall) transpose(matrix, x, m, n, o->scale);
    for (uint64_t i = 0; i < m * n && !tall; i++) matrix[i] = o->scale * x[i];
    float_env_leave(saved);
}

void orthogonalize(float *matrix, uint64_t rows, uint64_t columns, const struct orthogonalize_options *o,
                   float *scratch, uint32_t threads) {
    orthogonalize_isa(kernel_isa(), matrix, rows, columns, o, scratch, threads);
}
