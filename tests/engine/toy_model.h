/* A small model with everything that sharding must get right: sizes that nothing divides, a tied matrix that
 * is first and last, a frozen unit, small parameters that are persistent, a parameter without decay. Plain
 * loops, one thread.
 *
 *   in:  h = W x + b            W [WIDTH x VOCAB], b [WIDTH]
 *   k:   h = h + g * tanh(W h + b)   W [WIDTH x WIDTH], b, g [WIDTH]; blocks a, b, c
 *   fix: h = f * h              frozen
 *   out: y = W^T h + c          W is in's; loss = mean over samples of 0.5 |y - t|^2 / VOCAB */
#ifndef ZERO_TESTS_ENGINE_TOY_MODEL_H
#define ZERO_TESTS_ENGINE_TOY_MODEL_H

#include <stdint.h>

enum { TOY_VOCAB = 13, TOY_WIDTH = 7, TOY_BLOCKS = 3, TOY_BATCH = 3, TOY_PARAMS = 5 + 3 * TOY_BLOCKS };

struct toy_param {
    const char *name, *unit, *tied_to;
    uint32_t rows, columns, flags;
};

extern const struct toy_param toy_params[TOY_PARAMS];

/* The addresses of parameters and gradients, indexed like toy_params. */
struct toy_arrays {
    const float *param[TOY_PARAMS];
    float *grad[TOY_PARAMS];
    int add[TOY_PARAMS];
};

struct toy_pass {
    float x[TOY_BATCH][TOY_VOCAB], t[TOY_BATCH][TOY_VOCAB];
    float h[TOY_BLOCKS + 2][TOY_BATCH][TOY_WIDTH]; /* before each unit but the first */
    float z[TOY_BLOCKS][TOY_BATCH][TOY_WIDTH];     /* tanh */
    float y[TOY_BATCH][TOY_VOCAB], d[TOY_BATCH][TOY_WIDTH];
};

enum { TOY_UNITS = TOY_BLOCKS + 3 };
extern const char *const toy_units[TOY_UNITS];

void toy_batch(struct toy_pass *pass, uint32_t step, uint32_t micro, uint32_t rank);
double toy_forward(struct toy_pass *pass, uint32_t unit,
                   const struct toy_arrays *arrays); /* the last one's loss */
void toy_backward(struct toy_pass *pass, uint32_t unit, const struct toy_arrays *arrays);
void toy_fill(void *user, const char *param, uint64_t first, uint64_t count, float *out);

#endif
