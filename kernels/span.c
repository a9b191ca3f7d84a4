#include "kernels/span.h"

#include "engine/base/numbers/convert.h"
#include "engine/base/numbers/float_env.h"

static void scale(float *span, float factor, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) span[i] = canonical(span[i] * factor);
}

static void add(float *span, const float *other, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) span[i] = canonical(other[i] + span[i]);
}

void span_scale(float *span, float factor, uint64_t count) {
    void (*volatile call)(float *, float, uint64_t) = scale; /* volatile: prevents inlining (float_env.h) */
    float_env saved = float_env_enter();
    call(span, factor, count);
    float_env_leave(saved);
}

void span_add(float *span, const float *other, uint64_t count) {
    void (*volatile call)(float *, const float *, uint64_t) = add;
    float_env saved = float_env_enter();
    call(span, other, count);
    float_env_leave(saved);
}
