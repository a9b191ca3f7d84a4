#include "tests/engine/own_scopes.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tests/check.h"

enum { LR, DECAY, STEP };

/* The floating-point environment of kernels, whatever the host's is. */
static void keeps_denormals(void) {
    volatile float tiny = 1e-40f;
    CHECK(tiny * 1 != 0);
}

static void prepare(void *user, const zero_optimizer_params *p, uint64_t step,
                    float scalars[ZERO_SCALARS_MAX]) {
    keeps_denormals();
    scalars[LR] = scalars[STEP] = (float)p->lr, scalars[DECAY] = (float)p->weight_decay;
}

static float mean_of(float mean, float gradient) { return 0.9f * mean + 0.1f * gradient; }

/* ---- of a tensor ---- */

static void take_mean(void *user, float *weight, float *mean, float *none, const float *gradient,
                      float gradient_scale, const float *scalars, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) mean[i] = mean_of(mean[i], gradient[i] * gradient_scale);
}

static float step_of(float weight, float mean, const float *scalars) {
    return mean + scalars[DECAY] * weight;
}

static void make_step(void *user, float *weight, const float *mean, const float *none, const float *scalars,
                      uint64_t count) {
    keeps_denormals();
    CHECK(mean && !none);
    for (uint64_t i = 0; i < count; i++) weight[i] = step_of(weight[i], mean[i], scalars);
}

static void trust(void *user, double weight_norm, double direction_norm, float scalars[ZERO_SCALARS_MAX]) {
    keeps_denormals();
    if (weight_norm > 0 && direction_norm > 0)
        scalars[STEP] = (float)((double)scalars[LR] * weight_norm / direction_norm);
}

static void move(void *user, float *weight, float *mean, float *none, const float *gradient,
                 float gradient_scale, const float *scalars, uint64_t count) {
    CHECK(mean && !none && !gradient);
    for (uint64_t i = 0; i < count; i++) weight[i] -= scalars[STEP] * step_of(weight[i], mean[i], scalars);
}

const zero_optimizer own_trusting = {.struct_size = sizeof(zero_optimizer),
                                     .name = "trusting",
                                     .states = 1,
                                     .state_names = {"mean"},
                                     .rounds_states = 1,
                                     .prepare = prepare,
                                     .update = move,
                                     .scope = ZERO_SCOPE_TENSOR,
                                     .before = take_mean,
                                     .direction = make_step,
                                     .trust = trust};

/* ---- of a matrix ---- */

static void make_mean(void *user, float *direction, float *mean, float *none, const float *gradient,
                      float gradient_scale, const float *scalars, uint64_t count) {
    CHECK(mean && !none);
    for (uint64_t i = 0; i < count; i++)
        direction[i] = mean[i] = mean_of(mean[i], gradient[i] * gradient_scale);
}

static float inverse(float squares) { return squares > 0 ? 1 / sqrtf(squares) : 0; }

static void balance(void *user, float *direction, uint64_t rows, uint64_t columns, const float *scalars,
                    float *squares, uint32_t threads) {
    keeps_denormals();
    CHECK(threads > 0);
    CHECK_INT((uintptr_t)squares % 64, 0);
    memset(squares, 0, columns * sizeof *squares);
    for (uint64_t r = 0; r < rows; r++) {
        float *row = direction + r * columns, sum = 0;
        for (uint64_t c = 0; c < columns; c++) sum += row[c] * row[c];
        for (uint64_t c = 0; c < columns; c++) row[c] *= inverse(sum), squares[c] += row[c] * row[c];
    }
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c++) direction[r * columns + c] *= inverse(squares[c]);
}

static uint64_t balance_scratch(uint64_t rows, uint64_t columns) { return columns; }

static void follow(void *user, float *weight, float *none, float *none_either, const float *direction,
                   float scale, const float *scalars, uint64_t count) {
    CHECK(!none && !none_either);
    CHECK_DOUBLE(scale, 1, 0);
    for (uint64_t i = 0; i < count; i++)
        weight[i] -= scalars[LR] * (direction[i] + scalars[DECAY] * weight[i]);
}

const zero_optimizer own_balanced = {.struct_size = sizeof(zero_optimizer),
                                     .name = "balanced",
                                     .states = 1,
                                     .state_names = {"mean"},
                                     .rounds_states = 1,
                                     .prepare = prepare,
                                     .update = follow,
                                     .scope = ZERO_SCOPE_MATRIX,
                                     .before = make_mean,
                                     .matrix = balance,
                                     .matrix_scratch = balance_scratch};
