#include "tools/gpt/rotary.h"

#include <math.h>

/* The share of pair `i` that stays as it is: 1 for pairs that turn often, 0 for pairs that turn seldom. */
static double llama3_share(const struct gpt_config *c, uint32_t i, double plain) {
    const struct gpt_rope *r = &c->rope;
    double turns = r->original_context * plain / (2 * M_PI);
    return (turns - r->low) / (r->high - r->low);
}

/* The index, also between two pairs, at which a pair turns so many times in the original context. */
static double index_of_turns(const struct gpt_config *c, double turns) {
    return c->head_width * log(c->rope.original_context / (turns * 2 * M_PI)) / (2 * log(c->rope.theta));
}

static double yarn_share(const struct gpt_config *c, uint32_t i, double plain) {
    const struct gpt_rope *r = &c->rope;
    double first = index_of_turns(c, r->high), last = index_of_turns(c, r->low);
    if (!r->exact_range) first = floor(first), last = ceil(last);
    first = fmax(first, 0), last = fmin(last, c->head_width - 1.);
    if (first == last) last += 0.001;
    return 1 - (i - first) / (last - first);
}

static double linear_share(const struct gpt_config *c, uint32_t i, double plain) { return 0; }
static double plain_share(const struct gpt_config *c, uint32_t i, double plain) { return 1; }

/* The angle of pair `i` in radians per position. */
static double frequency(const struct gpt_config *c, uint32_t i) {
    static double (*const shares[GPT_ROPE_KINDS])(const struct gpt_config *c, uint32_t i,
                                                  double plain) = {[GPT_ROPE_PLAIN] = plain_share,
                                                                   [GPT_ROPE_LLAMA3] = llama3_share,
                                                                   [GPT_ROPE_LINEAR] = linear_share,
                                                                   [GPT_ROPE_YARN] = yarn_share};
    double plain = pow(c->rope.theta, -2. * i / c->head_width);
    double share = shares[c->rope.kind](c, i, plain);
    if (share >= 1) return plain;
    if (share <= 0) return plain / c->rope.factor;
    return (1 - share) * plain / c->rope.factor + share * plain;
}

void rotary_fill(float *cosine, float *sine, const struct gpt_config *c) {
    uint32_t half = c->head_width / 2;
    double length = c->rope.kind == GPT_ROPE_YARN ? c->rope.attention : 1;
    for (uint32_t i = 0; i < half && cosine; i++) {
        double each = frequency(c, i);
        for (uint32_t position = 0; position < c->context; position++) {
            cosine[(uint64_t)position * half + i] = (float)(length * cos(position * each));
            sine[(uint64_t)position * half + i] = (float)(length * sin(position * each));
        }
    }
}

void rotary_turn(const struct gpt *gpt, float *x, uint64_t ld, uint32_t heads, uint32_t first, uint32_t rows,
                 bool back) {
    const struct activations *a = &gpt->activations;
    uint32_t half = gpt->config.head_width / 2;
    for (uint32_t row = 0; row < rows && a->cosine; row++) {
        uint64_t at = (uint64_t)a->sequences.position[first + row] * half;
        gpt->kernels->rotate(x + row * ld, a->cosine + at, a->sine + at, heads, half, back);
    }
}
