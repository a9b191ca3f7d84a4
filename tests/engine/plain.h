/* A model that is a list of parameters, with a gradient that needs no forward. For tests of the engine's calls, which
 * do not need the toy model's mathematics. Allocates nothing after plain_declare.
 * It also works on the discrete device of ranks_run_discrete.
 *
 * The gradient of element i of a parameter p on rank r in micro-step m is p[i] / 8 + ((i + 3 r + 5 m) % 7 - 3). It
 * depends on the weights, so that a wrong gather is noticed, and on rank and micro-step. */
#ifndef ZERO_TESTS_ENGINE_PLAIN_H
#define ZERO_TESTS_ENGINE_PLAIN_H

#include "engine/zero.h"

enum { PLAIN_UNITS_MAX = 16, PLAIN_PARAMS_MAX = 32 };

struct plain_param {
    const char *unit, *name; /* parameters of a unit follow one another */
    uint64_t count;
    uint32_t flags;
    const char *tied_to;
};

struct plain {
    zero_engine *engine;
    const struct plain_param *param;
    uint32_t params, units;
    zero_unit *unit[PLAIN_UNITS_MAX];
    uint32_t unit_of[PLAIN_PARAMS_MAX];
    zero_slot slot[PLAIN_PARAMS_MAX];
};

zero_status plain_declare(struct plain *plain, zero_engine *engine, const struct plain_param *param,
                          uint32_t params);
/* columns[i]: parameter i is a matrix with as many columns; 0: it has one dimension. NULL: all have one. */
zero_status plain_declare_matrices(struct plain *plain, zero_engine *engine, const struct plain_param *param,
                                   uint32_t params, const uint64_t *columns);
/* Declares, commits and fills with toy_fill. */
zero_status plain_open(struct plain *plain, zero_engine *engine, const struct plain_param *param,
                       uint32_t params, zero_plan *out_plan);

static inline float plain_gradient(float weight, uint64_t element, uint32_t rank, uint32_t micro) {
    return weight / 8 + (float)(int)((element + 3 * rank + 5 * micro) % 7) - 3;
}

zero_status plain_forward(struct plain *plain, uint32_t unit);
/* Inside a backward: writes the gradients of one micro-step. */
void plain_give(struct plain *plain, uint32_t unit, uint32_t micro);
/* Of all micro-steps of a use, from `micro` on. */
zero_status plain_backward(struct plain *plain, uint32_t unit, uint32_t micro);
/* All units forward, and backward if the mode is ZERO_TRAIN. */
zero_status plain_pass(struct plain *plain, zero_mode mode, uint32_t micro);
zero_status plain_step(struct plain *plain, uint32_t micro_steps, zero_step_info *out);

#endif
