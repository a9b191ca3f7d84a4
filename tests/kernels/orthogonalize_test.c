/* Newton-Schulz against the formulas of torch.optim.Muon written here in double precision; the same bits with every
 * instruction set and number of threads; and ten steps of Muon. */
#include "kernels/orthogonalize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/numbers/convert.h"
#include "kernels/optimizer.h"
#include "tests/check.h"
#include "tests/kernels/random.h"

static const struct {
    uint64_t rows, columns;
} shapes[] = {{1, 1}, {1, 9}, {9, 1}, {7, 7}, {7, 13}, {13, 7}, {33, 70}, {70, 33}, {96, 96}, {129, 65}};

enum { SHAPES = sizeof shapes / sizeof *shapes };

static float *random_matrix(uint64_t count, uint64_t seed) {
    float *m = malloc(count * sizeof *m);
    for (uint64_t i = 0; i < count; i++) m[i] = random_uniform(&seed);
    return m;
}

static void multiply(const double *a, const double *b, double *out, uint64_t rows, uint64_t inner,
                     uint64_t columns) {
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < columns; j++) {
            double sum = 0;
            for (uint64_t k = 0; k < inner; k++) sum += a[i * inner + k] * b[k * columns + j];
            out[i * columns + j] = sum;
        }
}

/* _zeropower_via_newtonschulz of torch/optim/_muon.py, without the rounding to bf16. */
static void by_formula(double *g, uint64_t rows, uint64_t columns, uint32_t steps, double eps) {
    bool tall = rows > columns;
    uint64_t m = tall ? columns : rows, n = tall ? rows : columns;
    double *x = calloc(m * n, 8), *t = calloc(m * n, 8), *y = calloc(m * n, 8), *a = calloc(m * m, 8),
           *aa = calloc(m * m, 8), norm = 0;
    for (uint64_t i = 0; i < m * n; i++) norm += g[i] * g[i];
    norm = sqrt(norm) > eps ? sqrt(norm) : eps;
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < columns; j++) x[tall ? j * n + i : i * n + j] = g[i * columns + j] / norm;
    for (uint32_t s = 0; s < steps; s++) {
        for (uint64_t i = 0; i < m; i++)
            for (uint64_t j = 0; j < n; j++) t[j * m + i] = x[i * n + j];
        multiply(x, t, a, m, n, m);
        multiply(a, a, aa, m, m, m);
        for (uint64_t i = 0; i < m * m; i++) aa[i] = -4.775 * a[i] + 2.0315 * aa[i];
        multiply(aa, x, y, m, m, n);
        for (uint64_t i = 0; i < m * n; i++) x[i] = 3.4445 * x[i] + y[i];
    }
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < columns; j++) g[i * columns + j] = x[tall ? j * n + i : i * n + j];
    free(x), free(t), free(y), free(a), free(aa);
}

static double farthest(const float *x, const double *y, uint64_t count) {
    double most = 0;
    for (uint64_t i = 0; i < count; i++)
        if (!(fabs((double)x[i] - y[i]) <= most)) most = fabs((double)x[i] - y[i]);
    return most;
}

static void formula_and_bits(uint64_t rows, uint64_t columns, bool bf16) {
    uint64_t count = rows * columns, bytes = count * sizeof(float);
    struct orthogonalize_options o = {.steps = 5, .eps = 1e-7f, .scale = 1, .bf16 = bf16};
    float *start = random_matrix(count, rows * 100 + columns), *plain = malloc(bytes), *other = malloc(bytes),
          *scratch = malloc(orthogonalize_scratch(rows, columns) * sizeof(float));
    double *expected = malloc(count * sizeof *expected);
    for (uint64_t i = 0; i < count; i++) expected[i] = start[i];
    by_formula(expected, rows, columns, o.steps, 1e-7);
    memcpy(plain, start, bytes);
    orthogonalize_isa(KERNEL_SCALAR, plain, rows, columns, &o, scratch, 1);
    int good = CHECK_DOUBLE(farthest(plain, expected, count), 0, bf16 ? 0.06 : 5e-6);
    for (int isa = 0; isa < KERNEL_ISAS; isa++)
        for (uint32_t threads = 1; threads <= 2 && kernel_isa_present((enum kernel_isa)isa); threads++) {
            memcpy(other, start, bytes);
            orthogonalize_isa((enum kernel_isa)isa, other, rows, columns, &o, scratch, threads);
            good &= CHECK_BYTES(other, plain, bytes);
        }
    for (uint64_t i = 0; i < count && bf16; i++)
        good &= CHECK(f32_from_bf16(bf16_from_f32(plain[i])) == plain[i]);
    if (!good) fprintf(stderr, "  %d x %d, bf16 %d\n", (int)rows, (int)columns, bf16);
    free(start), free(plain), free(other), free(scratch), free(expected);
}

static void zero_stays_zero(void) {
    float m[6] = {0};
    _Alignas(64) float scratch[128];
    CHECK(orthogonalize_scratch(2, 3) <= sizeof scratch / sizeof *scratch);
    struct orthogonalize_options o = {.steps = 5, .eps = 1e-7f, .scale = 1};
    orthogonalize(m, 2, 3, &o, scratch, 1);
    for (int i = 0; i < 6; i++) CHECK_DOUBLE(m[i], 0, 0);
}

/* _single_tensor_muon: lerps, the iteration, decay, the factor of lr. */
static void ten_steps(uint64_t rows, uint64_t columns, bool nesterov, bool match_rms) {
    const struct optimizer *muon = optimizer_find("muon");
    struct optimizer_params p = muon->defaults;
    p.lr = 1e-2, p.nesterov = nesterov, p.match_rms = match_rms, p.weight_decay = 0.1;
    uint64_t count = rows * columns, seed = 5;
    float *w = random_matrix(count, 1), *m = calloc(count, sizeof *m), *d = malloc(count * sizeof *d),
          *scratch = malloc(muon->matrix_scratch(rows, columns) * sizeof(float));
    double *weight = malloc(count * 8), *momentum = calloc(count, 8), *update = malloc(count * 8);
    double ratio = match_rms ? 0.2 * sqrt((double)(rows > columns ? rows : columns))
                             : sqrt(rows > columns ? (double)rows / (double)columns : 1);
    for (uint64_t i = 0; i < count; i++) weight[i] = w[i];
    for (uint64_t step = 1; step <= 10; step++) {
        float *g = random_matrix(count, seed++);
        struct optimizer_scalars scalars;
        optimizer_prepare(muon, &p, step, &scalars);
        optimizer_update(muon->before, &(struct optimizer_args){.count = count,
                                                                .master = d,
                                                                .state = {m},
                                                                .gradient = g,
                                                                .gradient_scale = 1,
                                                                .scalars = &scalars,
                                                                .threads = 1});
        muon->matrix(d, rows, columns, &scalars, scratch, 1);
        optimizer_update(muon, &(struct optimizer_args){.count = count,
                                                        .master = w,
                                                        .gradient = d,
                                                        .gradient_scale = 1,
                                                        .scalars = &scalars,
                                                        .threads = 1});
        for (uint64_t i = 0; i < count; i++) {
            momentum[i] += (1 - p.momentum) * ((double)g[i] - momentum[i]);
            update[i] = nesterov ? (double)g[i] + p.momentum * (momentum[i] - (double)g[i]) : momentum[i];
        }
        by_formula(update, rows, columns, 5, 1e-7);
        for (uint64_t i = 0; i < count; i++)
            weight[i] = weight[i] * (1 - p.lr * p.weight_decay) - p.lr * ratio * update[i];
        free(g);
    }
    CHECK_DOUBLE(farthest(w, weight, count), 0, 1e-6);
    CHECK_DOUBLE(farthest(m, momentum, count), 0, 1e-6);
    free(w), free(m), free(d), free(scratch), free(weight), free(momentum), free(update);
}

int main(void) {
    for (int i = 0; i < SHAPES; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) formula_and_bits(shapes[i].rows, shapes[i].columns, bf16);
    zero_stays_zero();
    for (int form = 0; form < 4; form++) {
        ten_steps(24, 40, form & 1, form & 2);
        ten_steps(40, 24, form & 1, form & 2);
    }
    return check_end();
}
