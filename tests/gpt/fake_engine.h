/* A test double of engine/zero.h: one rank, stage 0, plain memory, no optimizer. It makes tests of the GPT independent
 * of the engine. It is stricter than the engine where that finds mistakes: outside of begin and end the slots are NULL,
 * a gradient that must be overwritten starts as NaN, and calls out of order fail. */
#ifndef ZERO_TESTS_GPT_FAKE_ENGINE_H
#define ZERO_TESTS_GPT_FAKE_ENGINE_H

#include <stdbool.h>

#include "engine/zero.h"

zero_engine *fake_engine_create(zero_dtype dtype, uint32_t threads, float loss_scale); /* any type */

/* A device with its own memory, to which the slots then point. Borrowed; set before units are declared. */
struct fake_device {
    void *stream; /* zero_engine_cuda's */
    void *user;
    void *(*allocate)(void *user, uint64_t bytes);
    void (*release)(void *user, void *memory);
    /* Enqueues a copy in either direction on the stream. `waits`: returns when the copy is done. */
    void (*copy)(void *user, void *target, const void *source, uint64_t bytes, bool waits);
    uint64_t spare_bytes; /* room for spare memory */
};
void fake_engine_on(zero_engine *engine, const struct fake_device *device);

/* A distinct parameter, in order of declaration; NULL past the last. A tied one is its owner. */
const char *fake_engine_name(const zero_engine *engine, uint32_t index);
uint64_t fake_engine_count(const zero_engine *engine, const char *name);
float *fake_engine_param(zero_engine *engine, const char *name); /* fp32; NULL: no such parameter */
float *fake_engine_grad(zero_engine *engine, const char *name);
uint64_t fake_engine_reserved(const zero_engine *engine, zero_tier tier);
uint64_t fake_engine_recomputed(const zero_engine *engine); /* forwards inside backwards */

/* The scratch that was declared, or NULL; places stored and fetched. */
const zero_scratch_needs *fake_engine_scratch(const zero_engine *engine);
uint64_t fake_engine_stores(const zero_engine *engine);
uint64_t fake_engine_fetches(const zero_engine *engine);

/* Micro-batches of each use; before the GPT is created. Gradients add up over them. */
void fake_engine_use_micros(zero_engine *engine, uint64_t micros);

void fake_engine_freeze_units(zero_engine *engine, uint32_t count); /* the first, as they are declared */
void fake_engine_freeze(zero_engine *engine, const char *name);     /* its slots show no gradient */

/* On a device: slots show other addresses of parameters or of gradients from now on. */
void fake_engine_move(zero_engine *engine, int grads);

/* As after a step: gradients are written anew. */
void fake_engine_next_step(zero_engine *engine);

#endif
