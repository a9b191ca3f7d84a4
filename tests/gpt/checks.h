/* Checks that hold for a GPT of any architecture: against the reference in double, and against itself. */
#ifndef ZERO_TESTS_GPT_CHECKS_H
#define ZERO_TESTS_GPT_CHECKS_H

#include "engine/zero.h"
#include "tests/gpt/fake_engine.h"
#include "tools/gpt/gpt.h"

enum { PARAMS_MAX = 256 };

/* A model over the fake engine, with random weights, norms and biases included, and random tokens: config.micros micro-steps of them,
 * which each use has. */
struct fixture {
    struct gpt_config config;
    uint32_t batch;
    zero_engine *engine;
    struct gpt *gpt;
    double *value[PARAMS_MAX]; /* the parameters in double */
    int32_t *tokens, *targets;
};
void fixture_open(zero_dtype dtype, struct fixture *out, struct gpt_config config, uint32_t batch,
                  uint32_t threads, float loss_scale);
void fixture_open_on(const struct fake_device *device, zero_dtype dtype, struct fixture *out,
                     struct gpt_config config, uint32_t batch, uint32_t threads, float loss_scale);
void fixture_close(struct fixture *fixture);

/* |x - scale y| / |scale y| */
double check_distance(const float *x, const float *y, double scale, uint64_t count);

/* The loss, and the gradient of every tensor against central finite differences of the reference; a second micro-step
 * adds. */
void check_gradients(struct gpt_config config, uint32_t batch, uint32_t threads);
void check_logits(struct gpt_config config, uint32_t batch, uint32_t threads); /* of any length */
/* A sequence, and a batch of so many copies of it: the same loss and gradients, up to rounding. */
void check_copies(struct gpt_config config, uint32_t copies, uint32_t threads);

/* All gradients of one micro-step on memory that was used before, one after another; the caller frees them. */
float *check_train(zero_dtype dtype, struct gpt_config config, uint32_t batch, uint32_t threads,
                   uint64_t *out_count);
/* The same bits on every run, and on another number of threads; in bf16 on a processor with AMX only on as many threads: there
 * oneDNN's order of additions depends on the shape of the part that a thread multiplies. */
void check_bits(zero_dtype dtype, struct gpt_config config, uint32_t batch, uint32_t threads,
                uint32_t other_threads);
/* bf16 or fp16 differs from fp32 by rounding. */
void check_narrow(zero_dtype dtype, struct gpt_config config, uint32_t batch, uint32_t threads);
/* With some parameters frozen, the others' gradients have the same bits, and the frozen ones' gradients are not
 * written. `top`: the number of frozen parameters in the last block and the head. */
void check_frozen(zero_dtype dtype, struct gpt_config config, uint32_t batch, uint32_t top);

#endif
