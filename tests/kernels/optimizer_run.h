/* Memory and parameters for tests of optimizers. */
#ifndef ZERO_TESTS_KERNELS_OPTIMIZER_RUN_H
#define ZERO_TESTS_KERNELS_OPTIMIZER_RUN_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"
#include "kernels/optimizer.h"
#include "tests/kernels/random.h"

/* One shard: weights, states, gradients of any type, weights cast out. Arrays are malloc'd so that ASan sees
 * their ends, and start `offset` elements in, so that nothing is aligned. */
struct shard {
    uint64_t count, offset;
    float *master, *state[OPTIMIZER_STATES_MAX];
    void *gradient, *out;
};

static inline struct shard shard_new(uint64_t count, uint64_t offset) {
    struct shard s = {.count = count, .offset = offset};
    size_t bytes = (count + offset) * sizeof(float);
    s.master = malloc(bytes), s.state[0] = malloc(bytes), s.state[1] = malloc(bytes);
    s.gradient = malloc(bytes), s.out = calloc(1, bytes);
    return s;
}

static inline void shard_free(struct shard *s) {
    free(s->master), free(s->state[0]), free(s->state[1]), free(s->gradient), free(s->out);
}

/* any: numbers of every kind, inf and NaN included; else as in training, the second state positive. */
static inline void shard_fill(struct shard *s, uint64_t seed, enum dtype gradient_dtype, int any) {
    float *gradient = calloc(s->count + 1, sizeof *gradient);
    for (uint64_t i = 0; i < s->count; i++) {
        s->master[s->offset + i] = any ? random_f32(&seed) : random_uniform(&seed);
        s->state[0][s->offset + i] = any ? random_f32(&seed) : 0.1f * random_uniform(&seed);
        float second = 0.1f * random_uniform(&seed);
        s->state[1][s->offset + i] = any ? random_f32(&seed) : second * second;
        gradient[i] = any ? random_f32(&seed) : random_uniform(&seed);
    }
    cast((char *)s->gradient + s->offset * dtype_bytes(gradient_dtype), gradient_dtype, gradient, DTYPE_F32,
         s->count);
    free(gradient);
}

static inline void shard_update(struct shard *s, const struct optimizer *optimizer, enum kernel_isa isa,
                                const struct optimizer_scalars *scalars, enum dtype gradient_dtype,
                                enum dtype out_dtype, uint64_t first, uint64_t count, uint32_t threads) {
    uint64_t at = s->offset + first;
    optimizer_update_isa(
        optimizer, isa,
        &(struct optimizer_args){
            .count = count,
            .master = s->master + at,
            .state = {s->state[0] + at, optimizer->state_count > 1 ? s->state[1] + at : NULL},
            .gradient = (char *)s->gradient + at * dtype_bytes(gradient_dtype),
            .gradient_dtype = gradient_dtype,
            .gradient_scale = 0.37f,
            .out = (char *)s->out + at * dtype_bytes(out_dtype),
            .out_dtype = out_dtype,
            .scalars = scalars,
            .threads = threads});
}

/* Every knob turned; `form` 0: defaults, 1: decay and momentum, 2: Nesterov and no bias correction. */
static inline struct optimizer_params params_of(const struct optimizer *optimizer, int form) {
    struct optimizer_params p = optimizer->defaults;
    if (form) p.weight_decay = 0.1, p.momentum = 0.9, p.dampening = 0.1, p.lr_decay = 0.01;
    if (form == 2) p.nesterov = true, p.dampening = 0, p.bias_correction = false;
    return p;
}

enum { PARAM_FORMS = 3 };

#endif
