/* A model that its program cuts itself: tensor parallel, in a pipeline, or both, with data ranks. Ranks are threads; what a tensor or
 * pipeline parallel program sends by itself goes through memory that they share. Uncut (1 x 1) it is the reference.
 *
 *   h = s * x                                        s: on the first and the last stage
 *   block k of BLOCKS: h = h + W2' tanh(W1 (g * h) + b1) + b2       W1, b1, W2 are cut by their HIDDEN rows; g, b2 are replicated
 *   loss = mean over samples of 0.5 |s * h - t|^2
 *
 * A step has one pass of MICROS micro-batches, in the order of a pipeline. */
#ifndef ZERO_TESTS_ENGINE_CUT_MODEL_H
#define ZERO_TESTS_ENGINE_CUT_MODEL_H

#include <pthread.h>
#include <stdbool.h>

#include "engine/zero.h"

enum {
    CUT_WIDTH = 6,
    CUT_HIDDEN = 8,
    CUT_BLOCKS = 4,
    CUT_BATCH = 3,
    CUT_MICROS = 2,
    CUT_MODELS_MAX = 4,
    CUT_RANKS_MAX = 8
};
enum { CUT_G, CUT_W1, CUT_B1, CUT_W2, CUT_B2, CUT_PARAMS }; /* of a block */
enum { CUT_VALUES = CUT_BATCH * CUT_WIDTH };

/* How the ranks are used. Model rank = tensor rank + tensor * stage. */
struct cut {
    uint32_t tensor, stages, data;
    bool strided;   /* data ranks are adjacent; else model ranks are */
    bool own_names; /* cut weights are parameters of their own, not rows of a tensor */
    /* At step nan_step, from 1, in a gradient of the last block on this model rank; 0: never. In replicated b2, or in W1. */
    uint32_t nan_step, nan_model;
    bool nan_replicated;
    uint32_t no_decay_model; /* this model rank declares W1 without weight decay; 0: none */
    uint32_t drift_model;    /* this model rank's gradient of g is another; 0: none */
};

struct cut_world;

struct cut_model {
    const struct cut *cut;
    struct cut_world *world;
    zero_engine *engine; /* NULL: it did not open */
    uint32_t rank, model, tp, stage, data_rank;
    uint32_t first_block, blocks; /* of this stage */
    zero_unit *scale, *block[CUT_BLOCKS];
    zero_slot s_slot, slot[CUT_BLOCKS][CUT_PARAMS];
    uint32_t step;
    double loss; /* of the last step, on the last stage; else 0 */
    float s[CUT_WIDTH], ds[2][CUT_WIDTH];
    float h[CUT_MICROS][CUT_BLOCKS + 1][CUT_VALUES]; /* before each block */
    float r[CUT_MICROS][CUT_BLOCKS][CUT_BATCH * CUT_HIDDEN];
};

typedef void (*cut_fn)(struct cut_model *model, void *user);

/* Runs the function on every rank; then destroys the engines. */
void cut_run(const struct cut *cut, const char *json, cut_fn body, void *user);

/* Declares this rank's units; not yet committed. */
zero_status cut_declare(struct cut_model *model);
void cut_fill(void *user, const char *param, uint64_t first, uint64_t count, float *out);

/* One step. A failure also lets go of the ranks that wait for this one's activations. */
zero_status cut_step(struct cut_model *model, zero_step_info *out);

/* The weights of the whole model, by name; each rank adds those that it has. Collective. */
struct cut_weights {
    float s[CUT_WIDTH], w[CUT_BLOCKS][CUT_PARAMS][CUT_HIDDEN * CUT_WIDTH];
};
void cut_read(struct cut_model *model, struct cut_weights *out);

/* The name of a block's parameter on this rank. */
void cut_name(const struct cut_model *model, uint32_t block, uint32_t param, char out[32]);

#endif
