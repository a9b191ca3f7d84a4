#include "tools/gpt/rotary.h"

#include <math.h>

/* The angle of pair `i` in radians per position. */
static double frequency(const struct gpt_config *c, uint32_t i) {
    const struct gpt_rope *r = &c->rope;
    double plain = pow(r->theta, -2. * i / c->head_width);
    if (!(r->factor > 0)) return plain;
    double turns = r->original_context * plain / (2 * M_PI);
    if (turns > r->high) return plain;
    if (turns < r->low) return plain / r->factor;
    double smooth = (turns - r->low) / (r->high - r->low);
    return (1 - smooth) * plain / r->factor + smooth * plain;
}

void rotary_fill(float *cosine, float *sine, const struct gpt_config *c) {
    uint32_t half = c->head_width / 2;
    for (uint32_t i = 0; i < half && cosine; i++) {
        double each = frequency(c, i);
        for (uint32_t position = 0; position < c->context; position++) {
            cosine[(uint64_t)position * half + i] = (float)cos(position * each);
            sine[(uint64_t)position * half + i] = (float)sin(position * each);
        }
    }
}

void rotary_turn(const struct gpt *gpt, float *x, uint64_t ld, uint32_t heads, uint32_t first, uint32_t rows,
                 bool back) {
    const struct activations *a = &gpt->activations;
    uint32_t half = gpt->config.head_width / 2;
    for (uint32_t row = 0; row < rows && a->cosine; row++) {
        uint64_t at = (uint64_t)((first + row) % gpt->pass.length) * half;
        gpt->kernels->rotate(x + row * ld, a->cosine + at, a->sine + at, heads, half, back);
    }
}
