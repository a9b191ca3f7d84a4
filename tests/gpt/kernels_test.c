/* Every compilation of the kernels against plain loops in double, at widths around a vector's; the tables agree. */
#include <math.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tools/gpt/math/kernels.h"

enum { ROWS = 5, WIDE = 67, ALL = ROWS * WIDE, LINE = 16 };

static const uint32_t widths[] = {1, 3, 4, 7, 8, 15, 16, 17, 33, 64, WIDE};
static uint64_t state;

static float uniform(float low, float high) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return low + (high - low) * (float)((state >> 33) * 0x1p-31);
}

static void fill(float *x, float low, float high) {
    for (int i = 0; i < ALL; i++) x[i] = uniform(low, high);
}

static void check_near(const char *what, const struct kernels *k, uint32_t width, double actual,
                       double expected) {
    if (fabs(actual - expected) <= 1e-5 * (1 + fabs(expected))) return;
    check_fail(__FILE__, __LINE__);
    fprintf(stderr, "%s of %s at width %u is %.9g, expected %.9g\n", what, k->name, width, actual, expected);
}

static double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
static double gelu_slope(double x) { return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5; }

static void check_gelu(const struct kernels *k, uint32_t width) {
    float x[ALL + 1], x0[ALL], y[ALL + 1], bias[ALL], dy[ALL], sums[WIDE + 1];
    fill(x0, -12, 12), fill(bias, -1, 1), fill(dy, -1, 1);
    memcpy(x, x0, sizeof x0);
    x[ROWS * width] = y[ROWS * width] = sums[width] = 777; /* nothing past the end is written */
    k->mlp[GELU].forward(y, x, bias, ROWS, width);
    for (uint32_t i = 0; i < ROWS * width; i++) {
        check_near("biased", k, width, x[i], (double)x0[i] + bias[i % width]);
        check_near("gelu", k, width, y[i], gelu(x[i]));
    }
    float input[ALL];
    memcpy(input, x, sizeof input), memcpy(y, dy, ROWS * width * sizeof(float)),
        memset(sums, 0, width * sizeof(float));
    k->mlp[GELU].backward(x, y, sums, ROWS, width);
    for (uint32_t i = 0; i < ROWS * width; i++) {
        check_near("gelu again", k, width, y[i], gelu(input[i]));
        check_near("gelu's gradient", k, width, x[i], dy[i] * gelu_slope(input[i]));
    }
    for (uint32_t c = 0; c < width; c++) {
        double s = 0;
        for (uint32_t r = 0; r < ROWS; r++) s += x[r * width + c];
        check_near("bias gradient", k, width, sums[c], s);
    }
    CHECK_DOUBLE(x[ROWS * width], 777, 0);
    CHECK_DOUBLE(y[ROWS * width], 777, 0);
    CHECK_DOUBLE(sums[width], 777, 0);
}

/* Half to even, by the neighbours: exact where 16 bits suffice. */
static void check_bf16(const struct kernels *k, uint32_t width) {
    float x[WIDE], back[WIDE + 1];
    uint16_t narrow[WIDE + 1];
    for (uint32_t i = 0; i < width; i++) x[i] = uniform(-3, 3);
    x[0] = 1.00390625f;                 /* 1 + 2^-8: half of the last place of 1 */
    if (width > 1) x[1] = -1.01171875f; /* one and a half of it */
    if (width > 2) x[2] = NAN;
    if (width > 3) x[3] = INFINITY;
    narrow[width] = 0x1234, back[width] = 777;
    k->narrow(narrow, x, width);
    k->widen(back, narrow, width);
    CHECK_INT(narrow[width], 0x1234);
    CHECK_DOUBLE(back[width], 777, 0);
    CHECK_DOUBLE(back[0], 1, 0);
    if (width > 1) CHECK_DOUBLE(back[1], -1.015625, 0);
    if (width > 2) CHECK(isnan(back[2]));
    if (width > 3) CHECK_DOUBLE(back[3], INFINITY, 0);
    for (uint32_t i = 4; i < width; i++) CHECK(fabsf(back[i] - x[i]) <= fabsf(x[i]) * 0x1p-8f);
}

/* Half to even; 65,520 and more are infinite; what fp16 has is exact, its denormals too. */
static void check_fp16(const struct kernels *k, uint32_t width) {
    static const float given[] = {1.00048828125f, 1.00146484375f, -65519, 65520, NAN,
                                  -INFINITY,      0x1.8p-24f,     -0.f};
    static const float expected[] = {1, 1.001953125f, -65504, INFINITY, NAN, -INFINITY, 0x1p-23f, -0.f};
    enum { GIVEN = sizeof given / sizeof *given };
    float x[WIDE], back[WIDE + 1];
    uint16_t narrow[WIDE + 1];
    for (uint32_t i = 0; i < width; i++) x[i] = i < GIVEN ? given[i] : uniform(-3, 3);
    narrow[width] = 0x1234, back[width] = 777;
    k->narrow_fp16(narrow, x, width);
    k->widen_fp16(back, narrow, width);
    CHECK_INT(narrow[width], 0x1234);
    CHECK_DOUBLE(back[width], 777, 0);
    for (uint32_t i = 0; i < width; i++) {
        if (i >= GIVEN)
            CHECK(fabsf(back[i] - x[i]) <= fabsf(x[i]) * 0x1p-11f + 0x1p-25f);
        else if (isnan(expected[i]))
            CHECK(isnan(back[i]));
        else
            CHECK(memcmp(&back[i], &expected[i], sizeof back[i]) == 0);
    }
}

static void check_softmax(const struct kernels *k, uint32_t columns, uint32_t window) {
    float scores[ALL + ROWS], raw[ALL + ROWS], dp[ALL + ROWS], dp0[ALL + ROWS], lse[ROWS], dots[ROWS];
    uint32_t rows = columns < ROWS ? columns : ROWS, first = columns - rows, stride = columns + 1;
    for (uint32_t i = 0; i < ALL + ROWS; i++) raw[i] = uniform(-30, 30), dp0[i] = uniform(-1, 1);
    memcpy(scores, raw, sizeof raw), memcpy(dp, dp0, sizeof dp);
    k->softmax(scores, lse, stride, first, rows, columns, window);
    for (uint32_t r = 0; r < rows; r++) {
        double total = 0;
        uint32_t from = first + r >= window ? first + r + 1 - window : 0;
        for (uint32_t c = from; c <= first + r; c++) total += exp(raw[r * stride + c]);
        check_near("lse", k, columns, lse[r], log(total));
        dots[r] = 0;
        for (uint32_t c = 0; c < columns; c++) {
            double p = c >= from && c <= first + r ? exp(raw[r * stride + c]) / total : 0;
            check_near("probability", k, columns, scores[r * stride + c], p);
            dots[r] += (float)(p * dp0[r * stride + c]);
        }
        CHECK_DOUBLE(scores[r * stride + columns], raw[r * stride + columns], 0);
    }
    float p[ALL + ROWS];
    memcpy(p, raw, sizeof p);
    k->softmax_backward(p, dp, lse, dots, stride, first, rows, columns, window);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < columns; c++) {
            uint32_t i = r * stride + c;
            check_near("probability again", k, columns, p[i], scores[i]);
            check_near("gradient of scores", k, columns, dp[i],
                       c <= first + r ? scores[i] * ((double)dp0[i] - dots[r]) : 0);
        }
}

static void check_norm(const struct kernels *k, uint32_t width) {
    float x[ALL], y[ALL], z[ALL], gain[ALL], bias[ALL], mean[ROWS], rstd[ROWS], dy[ALL], skip[ALL], dx[ALL];
    float dgain[WIDE] = {0}, dbias[WIDE] = {0};
    fill(x, 1, 5), fill(gain, .5, 2), fill(bias, -1, 1), fill(dy, -1, 1), fill(skip, -1, 1);
    k->norm[LAYER_NORM].forward(y, mean, rstd, x, gain, bias, ROWS, width, 1e-2f);
    k->norm[LAYER_NORM].recompute(z, x, mean, rstd, gain, bias, ROWS, width);
    CHECK_BYTES(z, y, ROWS * width * sizeof(float));
    k->norm[LAYER_NORM].backward(dx, dgain, dbias, skip, dy, x, mean, rstd, gain, ROWS, width);
    for (uint32_t r = 0; r < ROWS; r++) {
        const float *row = x + r * width;
        double m = 0, v = 0, g = 0, gn = 0;
        for (uint32_t c = 0; c < width; c++) m += row[c] / (double)width;
        for (uint32_t c = 0; c < width; c++) v += (row[c] - m) * (row[c] - m) / width;
        double s = 1 / sqrt(v + 1e-2);
        for (uint32_t c = 0; c < width; c++) {
            double n = (row[c] - m) * s, d = (double)dy[r * width + c] * gain[c];
            g += d / width, gn += d * n / width;
            check_near("norm", k, width, y[r * width + c], n * gain[c] + bias[c]);
        }
        for (uint32_t c = 0; c < width; c++) {
            double n = (row[c] - m) * s, d = (double)dy[r * width + c] * gain[c];
            check_near("norm's gradient", k, width, dx[r * width + c],
                       skip[r * width + c] + (d - g - n * gn) * s);
            dgain[c] -= (float)(dy[r * width + c] * n), dbias[c] -= dy[r * width + c];
        }
    }
    for (uint32_t c = 0; c < width; c++)
        check_near("gain's", k, width, dgain[c], 0), check_near("bias's", k, width, dbias[c], 0);
}

static void check_rms_norm(const struct kernels *k, uint32_t width) {
    float x[ALL], y[ALL + 1], z[ALL], gain[ALL], rstd[ROWS], dy[ALL], skip[ALL], dx[ALL + 1],
        dgain[WIDE] = {0};
    fill(x, 1, 5), fill(gain, .5, 2), fill(dy, -1, 1), fill(skip, -1, 1);
    y[ROWS * width] = dx[ROWS * width] = 777;
    k->norm[RMS_NORM].forward(y, NULL, rstd, x, gain, NULL, ROWS, width, 1e-2f);
    k->norm[RMS_NORM].recompute(z, x, NULL, rstd, gain, NULL, ROWS, width);
    CHECK_BYTES(z, y, ROWS * width * sizeof(float));
    k->norm[RMS_NORM].backward(dx, dgain, NULL, skip, dy, x, NULL, rstd, gain, ROWS, width);
    for (uint32_t r = 0; r < ROWS; r++) {
        const float *row = x + r * width;
        double square = 0, gn = 0;
        for (uint32_t c = 0; c < width; c++) square += (double)row[c] * row[c] / width;
        double s = 1 / sqrt(square + 1e-2);
        for (uint32_t c = 0; c < width; c++) {
            gn += (double)dy[r * width + c] * gain[c] * row[c] * s / width;
            check_near("RMS norm", k, width, y[r * width + c], row[c] * s * gain[c]);
        }
        for (uint32_t c = 0; c < width; c++) {
            double n = row[c] * s, d = (double)dy[r * width + c] * gain[c];
            check_near("RMS norm's gradient", k, width, dx[r * width + c],
                       skip[r * width + c] + (d - n * gn) * s);
            dgain[c] -= (float)(dy[r * width + c] * n);
        }
    }
    for (uint32_t c = 0; c < width; c++) check_near("RMS gain's", k, width, dgain[c], 0);
    CHECK_DOUBLE(y[ROWS * width], 777, 0);
    CHECK_DOUBLE(dx[ROWS * width], 777, 0);
}

static double silu(double x) { return x / (1 + exp(-x)); }

/* Columns of half a width: gate and value are side by side. */
static void check_swiglu(const struct kernels *k, uint32_t width) {
    float x[ALL + 1], x0[ALL], y[ALL + 1], dy[ALL];
    uint32_t columns = (width + 1) / 2;
    if (2 * columns > WIDE) columns--;
    fill(x0, -12, 12), fill(dy, -1, 1);
    memcpy(x, x0, sizeof x0);
    x[2 * ROWS * columns] = y[ROWS * columns] = 777;
    k->mlp[SWIGLU].forward(y, x, NULL, ROWS, columns);
    CHECK_BYTES(x, x0, 2 * ROWS * columns * sizeof(float));
    CHECK_DOUBLE(y[ROWS * columns], 777, 0);
    float forward[ALL];
    memcpy(forward, y, sizeof forward), memcpy(y, dy, ROWS * columns * sizeof(float));
    k->mlp[SWIGLU].backward(x, y, NULL, ROWS, columns);
    for (uint32_t i = 0; i < ROWS * columns; i++) {
        uint32_t at = i / columns * 2 * columns + i % columns;
        double gate = x0[at], value = x0[at + columns],
               slope = (silu(gate + 1e-5) - silu(gate - 1e-5)) / 2e-5;
        check_near("SwiGLU", k, columns, forward[i], silu(gate) * value);
        check_near("SwiGLU again", k, columns, y[i], forward[i]);
        check_near("gate's gradient", k, columns, x[at], dy[i] * value * slope);
        check_near("value's gradient", k, columns, x[at + columns], dy[i] * silu(gate));
    }
    CHECK_DOUBLE(x[2 * ROWS * columns], 777, 0);
}

/* Pairs turn, and turn back. */
static void check_rotate(const struct kernels *k, uint32_t half) {
    enum { HEADS = 2 };
    float x[2 * HEADS * WIDE + 1], x0[2 * HEADS * WIDE], cosine[WIDE] = {0}, sine[WIDE] = {0};
    uint32_t all = 2 * HEADS * half;
    for (uint32_t i = 0; i < all; i++) x[i] = x0[i] = uniform(-3, 3);
    for (uint32_t i = 0; i < half; i++) cosine[i] = cosf((float)i), sine[i] = sinf((float)i);
    x[all] = 777;
    k->rotate(x, cosine, sine, HEADS, half, false);
    for (uint32_t i = 0; i < all; i++) {
        uint32_t pair = i % half, first = i / (2 * half) * 2 * half + pair;
        double a = x0[first], b = x0[first + half];
        bool second = i % (2 * half) >= half;
        check_near("turned", k, half, x[i],
                   second ? b * cos(pair) + a * sin(pair) : a * cos(pair) - b * sin(pair));
    }
    k->rotate(x, cosine, sine, HEADS, half, true);
    for (uint32_t i = 0; i < all; i++) check_near("turned back", k, half, x[i], x0[i]);
    CHECK_DOUBLE(x[all], 777, 0);
}

static void check_cross_entropy(const struct kernels *k, uint32_t width) {
    float x[ALL], raw[ALL];
    fill(raw, -20, 20);
    memcpy(x, raw, sizeof x);
    double total = 0, loss = k->cross_entropy(x, width, width / 2, 3);
    for (uint32_t c = 0; c < width; c++) total += exp(raw[c]);
    check_near("loss", k, width, loss, log(total) - raw[width / 2]);
    for (uint32_t c = 0; c < width; c++)
        check_near("gradient of logits", k, width, x[c], 3 * (exp(raw[c]) / total - (c == width / 2)));
    CHECK_DOUBLE(x[width], raw[width], 0);
    x[width - 1] = NAN;
    CHECK(isnan(k->cross_entropy(x, width, 0, 1))); /* a broken model is seen in its loss */
}

/* A row in three parts, of which the middle one may be empty; logits so far apart that the maximum moves. */
static void check_softmax_parts(const struct kernels *k, uint32_t width) {
    float x[ALL], raw[ALL], most = -INFINITY, total = 0;
    const uint32_t end[] = {(width + 1) / 3, (width + 1) / 2, width};
    fill(raw, -60, 60);
    memcpy(x, raw, sizeof x);
    double sum = 0;
    for (uint32_t c = 0; c < width; c++) sum += exp(raw[c]);
    for (uint32_t p = 0, at = 0; p < 3; at = end[p++])
        if (end[p] > at) k->softmax_part(x + at, end[p] - at, &most, &total);
    check_near("logarithm of the sum", k, width, (double)most + log((double)total), log(sum));
    memcpy(x, raw, sizeof x);
    for (uint32_t p = 0, at = 0; p < 3; at = end[p++])
        if (end[p] > at) k->softmax_of(x + at, end[p] - at, most, 3 / total);
    for (uint32_t c = 0; c < width; c++) check_near("softmax", k, width, x[c], 3 * exp(raw[c]) / sum);
    CHECK_DOUBLE(x[width], raw[width], 0);
    memcpy(x, raw, sizeof x);
    x[width - 1] = NAN;
    k->softmax_part(x, width, &most, &total);
    CHECK(isnan(total));
}

/* A row of y has `ld` elements: whole lines can be streamed, others cannot. */
static void check_transpose(const struct kernels *k, uint32_t width, uint32_t ld, bool streamed) {
    static float x[WIDE * WIDE];
    static _Alignas(64) float y[WIDE * (WIDE + LINE)];
    for (int i = 0; i < WIDE * WIDE; i++) x[i] = (float)i;
    for (uint32_t rows = 1; rows <= WIDE; rows += 11) {
        for (uint32_t i = 0; i < WIDE * ld; i++) y[i] = -1;
        k->transpose(y, ld, x, WIDE, rows, width, streamed);
        for (uint32_t i = 0; i < WIDE * ld; i++) {
            uint32_t c = i / ld, r = i % ld;
            check_near("transpose", k, width, y[i], r < rows && c < width ? r * WIDE + c : -1.);
        }
    }
}

static void check_sums(const struct kernels *k, uint32_t width) {
    float a[ALL], b[ALL], y[ALL], dots[ROWS], sums[WIDE] = {0};
    fill(a, -1, 1), fill(b, -1, 1);
    k->row_dots(dots, a, b, width, ROWS, width);
    k->column_sums(sums, a, ROWS, width, width);
    for (uint32_t r = 0; r < ROWS; r++) {
        double s = 0;
        for (uint32_t c = 0; c < width; c++)
            s += (double)a[r * width + c] * b[r * width + c], sums[c] -= a[r * width + c];
        check_near("dot", k, width, dots[r], s);
    }
    for (uint32_t c = 0; c < width; c++) check_near("column sum", k, width, sums[c], 0);
    k->bias_add(y, a, b, ROWS, width, width);
    for (uint32_t i = 0; i < ROWS * width; i++)
        check_near("bias", k, width, y[i], (double)a[i] + b[i % width]);
    for (int i = 0; i < ALL; i++) y[i] = NAN;
    k->scale_add(y, a, 0, width); /* 0 reads nothing: a gradient to overwrite may be NaN */
    k->scale_add(y, b, 1, width);
    for (uint32_t c = 0; c < width; c++) check_near("sum", k, width, y[c], (double)a[c] + b[c]);
}

int main(void) {
    uint32_t tables = 0;
    for (const struct kernels *k; (k = kernels_at(tables)); tables++) {
        state = 3;
        for (uint32_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            check_bf16(k, widths[i]), check_fp16(k, widths[i]), check_gelu(k, widths[i]),
                check_softmax(k, widths[i], UINT32_MAX), check_softmax(k, widths[i], 3),
                check_norm(k, widths[i]);
            check_rms_norm(k, widths[i]), check_swiglu(k, widths[i]), check_rotate(k, widths[i]);
            check_cross_entropy(k, widths[i]), check_softmax_parts(k, widths[i]);
            check_sums(k, widths[i]);
            for (int streamed = 0; streamed < 2; streamed++) {
                check_transpose(k, widths[i], WIDE + 1, streamed);
                check_transpose(k, widths[i], WIDE + LINE - WIDE % LINE, streamed);
            }
        }
    }
    CHECK(tables >= 1);
    CHECK(kernels_best() == kernels_at(tables - 1));
    return check_end();
}
