#include "kernels/orthogonalize.h"

#include <math.h>
#if defined(_OPENMP)
#include <omp.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "engine/base/integer.h"
#include "engine/base/limits.h"
#include "engine/base/numbers/convert.h"
#include "engine/base/numbers/float_env.h"
#include "kernels/cast.h"
#include "kernels/matrix_step.h"
#include "kernels/norm.h"

/* The coefficients of torch.optim.Muon. */
static const float coefficient_a = 3.4445f, coefficient_b = -4.775f, coefficient_c = 2.0315f;

enum {
    TILE_ROWS = 6,
    LANES = 8,
    SIDE = 32, /* of a block that is transposed */
    LINE = 16  /* floats of a cache line, on which each array of the scratch memory begins */
};

static void finish(const struct matrix_step *p, uint64_t i, uint64_t j, float sum) {
    uint64_t at = i * p->columns + j;
    ((float *)p->out)[at] = matrix_finished(p, at, sum);
}

/* ---- tiles: some rows by some columns of the product ---- */

#define EDGE(isa, attribute)                                                                                 \
    attribute static void edge_##isa(const struct matrix_step *p, uint64_t i, uint64_t rows, uint64_t j,     \
                                     uint64_t columns) {                                                     \
        const float *a = p->a, *b = p->b;                                                                    \
        for (uint64_t r = i; r < i + rows; r++)                                                              \
            for (uint64_t c = j; c < j + columns; c++) {                                                     \
                float sum = 0;                                                                               \
                for (uint64_t k = 0; k < p->inner; k++)                                                      \
                    sum = fmaf(a[r * p->inner + k], b[k * p->columns + c], sum);                             \
                finish(p, r, c, sum);                                                                        \
            }                                                                                                \
    }

/* TILE_ROWS rows by two vectors of columns, in registers. */
#define TILE(isa, attribute, vector, lanes, zero, load, store, splat, fma)                                   \
    attribute static void tile_##isa(const struct matrix_step *p, uint64_t i, uint64_t j) {                  \
        vector sum[TILE_ROWS][2];                                                                            \
        float out[2 * (lanes)];                                                                              \
        _Pragma("GCC unroll 8") for (int r = 0; r < TILE_ROWS; r++) sum[r][0] = sum[r][1] = zero();          \
        for (uint64_t k = 0; k < p->inner; k++) {                                                            \
            const float *b = (const float *)p->b + k * p->columns + j,                                       \
                        *a = (const float *)p->a + i * p->inner + k;                                         \
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
    static void rows_##isa(const struct matrix_step *p, uint64_t first, uint64_t end) {                      \
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
static void tile_scalar(const struct matrix_step *p, uint64_t i, uint64_t j) {
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

typedef void rows_fn(const struct matrix_step *p, uint64_t first, uint64_t end);
static rows_fn *const rows_of[KERNEL_ISAS] = ISA_TABLE(rows);

/* ---- products ---- */

static void multiply_part(enum kernel_isa isa, const struct matrix_step *p, uint64_t part, uint64_t parts) {
    uint64_t tiles = (p->rows + TILE_ROWS - 1) / TILE_ROWS, end = tiles * (part + 1) / parts * TILE_ROWS;
    float_env saved = float_env_enter();
    rows_of[isa](p, tiles * part / parts * TILE_ROWS, end < p->rows ? end : p->rows);
    float_env_leave(saved);
}

/* The OpenMP runtime may grant fewer threads than asked. */
static void multiply(enum kernel_isa isa, const struct matrix_step *p, uint32_t threads) {
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

static void transpose(const struct matrix_step *s) {
    const float *in = s->a;
    float *out = s->out;
    for (uint64_t i = 0; i < s->rows; i += SIDE)
        for (uint64_t j = 0; j < s->columns; j += SIDE)
            for (uint64_t r = i; r < min64(i + SIDE, s->rows); r++)
                for (uint64_t c = j; c < min64(j + SIDE, s->columns); c++)
                    out[c * s->rows + r] = matrix_scaled(in[r * s->columns + c], s->alpha);
}

/* ---- the other steps ---- */

static void squares(enum kernel_isa isa, const struct matrix_step *s) {
    enum dtype dtype = s->bf16 ? DTYPE_BF16 : DTYPE_F32;
    uint64_t count = s->rows * s->columns;
    double *sums = s->out;
    for (uint64_t i = 0; i < count; i += NORM_BLOCK_ELEMENTS)
        sums[i / NORM_BLOCK_ELEMENTS] = norm_block_isa(isa, (const uint8_t *)s->a + i * dtype_bytes(dtype),
                                                       dtype, min64(count - i, NORM_BLOCK_ELEMENTS));
}

static void total(const struct matrix_step *s) {
    const double *sums = s->a;
    double sum = 0;
    for (uint64_t i = 0; i < s->columns; i++) sum += sums[i];
    *(double *)s->out = canonical_f64(sum);
}

static void normalize(const struct matrix_step *s) {
    const float *in = s->a;
    float *out = s->out, norm = matrix_norm(*(const double *)s->b, s->alpha, s->bf16);
    for (uint64_t i = 0; i < s->rows * s->columns; i++) out[i] = matrix_normal(in[i], norm, s->bf16);
}

static void scale(const struct matrix_step *s) {
    const float *in = s->a;
    float *out = s->out;
    for (uint64_t i = 0; i < s->rows * s->columns; i++) out[i] = matrix_scaled(in[i], s->alpha);
}

static void run_step(enum kernel_isa isa, const struct matrix_step *s, uint32_t threads) {
    switch ((enum matrix_step_kind)s->kind) {
    case MATRIX_CAST:
        cast_isa(isa, s->out, DTYPE_BF16, s->a, DTYPE_F32, s->rows * s->columns);
        break;
    case MATRIX_SQUARES:
        squares(isa, s);
        break;
    case MATRIX_TOTAL:
        total(s);
        break;
    case MATRIX_NORMALIZE:
        normalize(s);
        break;
    case MATRIX_TRANSPOSE:
        transpose(s);
        break;
    case MATRIX_SCALE:
        scale(s);
        break;
    case MATRIX_PRODUCT:
        multiply(isa, s, threads);
        break;
    }
}

/* ---- the iteration ---- */

/* Of scratch memory, in floats: sums of squares come first; then their total; X, and another of its shape; A, and another square. */
struct places {
    uint64_t total, x, y, a, h, end;
};

static uint64_t after(uint64_t place, uint64_t floats) { return place + (floats + LINE - 1) / LINE * LINE; }

static struct places places_of(uint64_t rows, uint64_t columns) {
    uint64_t all = rows * columns, side = min64(rows, columns),
             blocks = (all + NORM_BLOCK_ELEMENTS - 1) / NORM_BLOCK_ELEMENTS;
    struct places p = {.total = 2 * blocks};
    p.x = after(0, 2 * (blocks + 1));
    p.y = after(p.x, all);
    p.a = after(p.y, all);
    p.h = after(p.a, side * side);
    p.end = after(p.h, side * side);
    return p;
}

uint64_t orthogonalize_scratch(uint64_t rows, uint64_t columns) { return places_of(rows, columns).end; }

double orthogonalize_flops(uint64_t rows, uint64_t columns) {
    double side = (double)min64(rows, columns), all = (double)rows * (double)columns;
    return 2 * side * (2 * all + side * side);
}

/* X = M / max(|M|, eps), and of rows > columns its transpose. */
enum { BEGIN_CAST, BEGIN_SQUARES, BEGIN_TOTAL, BEGIN_NORMALIZE, BEGIN_TRANSPOSE, BEGINS };

static struct matrix_step begin(uint32_t at, float *matrix, uint64_t rows, uint64_t columns,
                                const struct orthogonalize_options *o, float *scratch) {
    const struct places p = places_of(rows, columns);
    struct matrix_step s = {.a = matrix, .rows = rows, .columns = columns, .alpha = 1, .bf16 = o->bf16};
    bool tall = rows > columns;
    switch (at) {
    case BEGIN_CAST:
        s.kind = MATRIX_CAST, s.out = scratch + p.x;
        break;
    case BEGIN_SQUARES:
        s.kind = MATRIX_SQUARES, s.out = scratch;
        if (o->bf16) s.a = scratch + p.x;
        break;
    case BEGIN_TOTAL:
        s.kind = MATRIX_TOTAL, s.a = scratch, s.out = scratch + p.total;
        s.rows = 1, s.columns = p.total / 2;
        break;
    case BEGIN_NORMALIZE:
        s.kind = MATRIX_NORMALIZE, s.b = scratch + p.total, s.alpha = o->eps;
        s.out = scratch + (tall ? p.y : p.x);
        break;
    default:
        s.kind = MATRIX_TRANSPOSE, s.a = scratch + p.y, s.out = scratch + p.x;
    }
    return s;
}

/* A = X X^T, H = b A + c A A, Y = a X + H X; then Y is X. */
enum { TURN_TRANSPOSE, TURN_SQUARE, TURN_POLYNOMIAL, TURN_STEP, TURNS };

static struct matrix_step turn(uint32_t at, uint64_t m, uint64_t n, bool bf16, float *scratch) {
    const struct places p = places_of(m, n);
    bool odd = at / TURNS % 2;
    float *x = scratch + (odd ? p.y : p.x), *y = scratch + (odd ? p.x : p.y), *a = scratch + p.a,
          *h = scratch + p.h;
    struct matrix_step s = {.kind = MATRIX_PRODUCT, .rows = m, .columns = m, .alpha = 1, .bf16 = bf16};
    switch (at % TURNS) {
    case TURN_TRANSPOSE:
        s.kind = MATRIX_TRANSPOSE, s.a = x, s.out = y, s.columns = n;
        break;
    case TURN_SQUARE:
        s.a = x, s.b = y, s.out = a, s.inner = n;
        break;
    case TURN_POLYNOMIAL:
        s.a = s.b = s.d = a, s.out = h, s.inner = m;
        s.alpha = coefficient_c, s.beta = coefficient_b;
        break;
    default:
        s.a = h, s.b = s.d = x, s.out = y, s.inner = m, s.columns = n;
        s.beta = coefficient_a;
    }
    return s;
}

bool orthogonalize_step(uint32_t at, float *matrix, uint64_t rows, uint64_t columns,
                        const struct orthogonalize_options *o, float *scratch, struct matrix_step *out) {
    const struct places p = places_of(rows, columns);
    bool tall = rows > columns;
    uint64_t m = tall ? columns : rows, n = tall ? rows : columns;
    uint32_t turns = o->steps * TURNS;
    if (!o->bf16) at++;
    if (!tall && at >= BEGIN_TRANSPOSE) at++;
    if (at < BEGINS) return *out = begin(at, matrix, rows, columns, o, scratch), true;
    at -= BEGINS;
    if (at < turns) return *out = turn(at, m, n, o->bf16, scratch), true;
    *out = (struct matrix_step){.kind = tall ? MATRIX_TRANSPOSE : MATRIX_SCALE,
                                .a = scratch + (o->steps % 2 ? p.y : p.x),
                                .out = matrix,
                                .rows = m,
                                .columns = n,
                                .alpha = o->scale};
    return at == turns;
}

static void run_in_env(enum kernel_isa isa, const struct matrix_step *step, uint32_t threads) {
    float_env saved = float_env_enter();
    run_step(isa, step, threads);
    float_env_leave(saved);
}

void matrix_step_run(const struct matrix_step *step, uint32_t threads) {
    run_in_env(kernel_isa(), step, threads);
}

void orthogonalize_isa(enum kernel_isa isa, float *matrix, uint64_t rows, uint64_t columns,
                       const struct orthogonalize_options *o, float *scratch, uint32_t threads) {
    struct matrix_step step;
    for (uint32_t at = 0; orthogonalize_step(at, matrix, rows, columns, o, scratch, &step); at++)
        run_in_env(isa, &step, threads);
}

void orthogonalize(float *matrix, uint64_t rows, uint64_t columns, const struct orthogonalize_options *o,
                   float *scratch, uint32_t threads) {
    orthogonalize_isa(kernel_isa(), matrix, rows, columns, o, scratch, threads);
}
