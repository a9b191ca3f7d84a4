#include "tests/engine/toy_model.h"

#include <string.h>

#include "engine/base/numbers/convert.h"
#include "engine/zero.h"

enum { V = TOY_VOCAB, C = TOY_WIDTH, B = TOY_BATCH, LAST = TOY_UNITS - 1, FIX = TOY_UNITS - 2 };

const char *const toy_units[TOY_UNITS] = {"in", "a", "b", "c", "fix", "out"};

const struct toy_param toy_params[TOY_PARAMS] = {
    {"in.w", "in", NULL, C, V, 0},
    {"in.b", "in", NULL, C, 1, ZERO_NO_DECAY},
    {"a.w", "a", NULL, C, C, 0},
    {"a.b", "a", NULL, C, 1, 0},
    {"a.g", "a", NULL, C, 1, ZERO_NO_DECAY},
    {"b.w", "b", NULL, C, C, 0},
    {"b.b", "b", NULL, C, 1, 0},
    {"b.g", "b", NULL, C, 1, 0},
    {"c.w", "c", NULL, C, C, 0},
    {"c.b", "c", NULL, C, 1, 0},
    {"c.g", "c", NULL, C, 1, 0},
    {"fix.f", "fix", NULL, C, 1, ZERO_FROZEN},
    {"out.w", "out", "in.w", C, V, 0},
    {"out.c", "out", NULL, V, 1, 0},
};

enum { IN_W, IN_B, BLOCK, FIX_F = BLOCK + 3 * TOY_BLOCKS, OUT_W, OUT_C };

static float uniform(uint64_t key) {
    key = (key ^ key >> 31) * 0x9e3779b97f4a7c15u;
    key = (key ^ key >> 29) * 0xbf58476d1ce4e5b9u;
    return (float)((double)((key ^ key >> 32) >> 11) / 9007199254740992.0 - 0.5);
}

void toy_fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    uint64_t h = 77;
    for (const char *c = param; *c; c++) h = h * 131 + (uint8_t)*c;
    for (uint64_t i = 0; i < count; i++) out[i] = uniform(h * 1000003 + first + i);
    /* Halfway between two bf16 numbers, so that masters of bf16 do not keep it. */
    if (first == 0 && count) out[0] = float_of((bits_of(out[0]) & ~0x1ffffu) | 0x8000);
}

void toy_batch(struct toy_pass *p, uint32_t step, uint32_t micro, uint32_t rank) {
    uint64_t key = ((uint64_t)step * 64 + micro) * 64 + rank + 12345;
    for (int s = 0; s < B; s++)
        for (int i = 0; i < V; i++) {
            p->x[s][i] = uniform(key * 4096 + (uint64_t)(s * V + i));
            p->t[s][i] = uniform(key * 4096 + 2048 + (uint64_t)(s * V + i));
        }
}

/* tanh(x), to fp32's precision, by Lambert's continued fraction: C libraries differ in the last bits of theirs. */
static float bounded(float x) {
    double at = x > 9 ? 9 : x < -9 ? -9 : (double)x, square = at * at, below = 27;
    for (int k = 25; k > 0; k -= 2) below = k + square / below;
    return (float)(at / below);
}

static void forward_in(struct toy_pass *p, const struct toy_arrays *a) {
    for (int s = 0; s < B; s++)
        for (int r = 0; r < C; r++) {
            float sum = a->param[IN_B][r];
            for (int i = 0; i < V; i++) sum += a->param[IN_W][r * V + i] * p->x[s][i];
            p->h[0][s][r] = sum;
        }
}

static void forward_block(struct toy_pass *p, uint32_t k, const struct toy_arrays *a) {
    const float *w = a->param[BLOCK + 3 * k], *b = a->param[BLOCK + 3 * k + 1],
                *g = a->param[BLOCK + 3 * k + 2];
    for (int s = 0; s < B; s++)
        for (int r = 0; r < C; r++) {
            float sum = b[r];
            for (int i = 0; i < C; i++) sum += w[r * C + i] * p->h[k][s][i];
            p->z[k][s][r] = bounded(sum);
            p->h[k + 1][s][r] = p->h[k][s][r] + g[r] * p->z[k][s][r];
        }
}

static double forward_out(struct toy_pass *p, const struct toy_arrays *a) {
    double loss = 0;
    for (int s = 0; s < B; s++)
        for (int i = 0; i < V; i++) {
            float sum = a->param[OUT_C][i];
            for (int r = 0; r < C; r++) sum += a->param[OUT_W][r * V + i] * p->h[TOY_BLOCKS + 1][s][r];
            p->y[s][i] = sum;
            loss += 0.5 * (double)(sum - p->t[s][i]) * (double)(sum - p->t[s][i]) / V / B;
        }
    return loss;
}

double toy_forward(struct toy_pass *p, uint32_t unit, const struct toy_arrays *a) {
    if (unit == 0) forward_in(p, a);
    if (unit > 0 && unit < FIX) forward_block(p, unit - 1, a);
    if (unit == FIX)
        for (int s = 0; s < B; s++)
            for (int r = 0; r < C; r++)
                p->h[TOY_BLOCKS + 1][s][r] = a->param[FIX_F][r] * p->h[TOY_BLOCKS][s][r];
    return unit == LAST ? forward_out(p, a) : 0;
}

/* Writes or adds the sum over samples of d[s][r] * x[s][i]; columns 1 with x = NULL: of d. */
static void outer(const struct toy_arrays *a, int index, const float *d, int rows, const float *x,
                  int columns) {
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < columns; i++) {
            float sum = 0;
            for (int s = 0; s < B; s++) sum += d[s * rows + r] * (x ? x[s * columns + i] : 1.0f);
            float *g = &a->grad[index][r * columns + i];
            *g = a->add[index] ? *g + sum : sum;
        }
}

static void backward_out(struct toy_pass *p, const struct toy_arrays *a) {
    float dy[B][V];
    for (int s = 0; s < B; s++)
        for (int i = 0; i < V; i++) dy[s][i] = (p->y[s][i] - p->t[s][i]) / (V * B);
    for (int s = 0; s < B; s++)
        for (int r = 0; r < C; r++) {
            float sum = 0;
            for (int i = 0; i < V; i++) sum += a->param[OUT_W][r * V + i] * dy[s][i];
            p->d[s][r] = sum;
        }
    outer(a, OUT_W, p->h[TOY_BLOCKS + 1][0], C, dy[0], V);
    outer(a, OUT_C, dy[0], V, NULL, 1);
}

static void backward_block(struct toy_pass *p, uint32_t k, const struct toy_arrays *a) {
    const float *w = a->param[BLOCK + 3 * k], *g = a->param[BLOCK + 3 * k + 2];
    float dz[B][C], dg[B][C];
    for (int s = 0; s < B; s++)
        for (int r = 0; r < C; r++) {
            float z = p->z[k][s][r];
            dg[s][r] = p->d[s][r] * z;
            dz[s][r] = p->d[s][r] * g[r] * (1 - z * z);
        }
    for (int s = 0; s < B; s++)
        for (int i = 0; i < C; i++) {
            float sum = p->d[s][i];
            for (int r = 0; r < C; r++) sum += w[r * C + i] * dz[s][r];
            p->d[s][i] = sum;
        }
    int first = BLOCK + 3 * (int)k;
    outer(a, first, dz[0], C, p->h[k][0], C);
    outer(a, first + 1, dz[0], C, NULL, 1);
    outer(a, first + 2, dg[0], C, NULL, 1);
}

void toy_backward(struct toy_pass *p, uint32_t unit, const struct toy_arrays *a) {
    if (unit == LAST) backward_out(p, a);
    if (unit == FIX)
        for (int s = 0; s < B; s++)
            for (int r = 0; r < C; r++) p->d[s][r] *= a->param[FIX_F][r];
    if (unit > 0 && unit < FIX) backward_block(p, unit - 1, a);
    if (unit == 0) {
        outer(a, IN_W, p->d[0], C, p->x[0], V);
        outer(a, IN_B, p->d[0], C, NULL, 1);
    }
}
