/* A block's linear layers: the products of a tile with them in both directions, and their gradients. */
#pragma once

#include "tools/gpt/cpu/block.h"
#include "tools/gpt/cpu/phase.h"

/* A product with a transposed weight reaches 70 to 90 % of the rate of a plain one, because oneDNN packs the weight
 * again for every tile. Weights are therefore transposed once per use, before the tiles: weights stored
 * [inputs][outputs] before the backward, the others before the forward. The transposed matrix is a sequence of panels of
 * columns, since oneDNN packs rows that are far apart slowly: a product of 64 rows with a weight of 2,304 x 12,288 takes
 * 0.62 of the time. bf16 products run at the same rate in both forms. */
void projection_turn(struct block *block, bool backward);

/* The rows of one factor and of the result that a product uses, from its first row on. */
struct factors {
    const float *x;
    float *y;
    float beta;
};

/* Panels of the columns of a product's result. Their width depends only on the model, so that bits depend on nothing else. */
uint32_t projection_panels(const struct block *block, enum projection_index index, bool backward);

/* All panels of a product, or one. Forward: y[rows][outputs] = beta y + x[rows][inputs] weights; only a projection of one
 * layer may add: beta is 0 for several layers. Backward: y[rows][inputs] = x[rows][outputs] weights^T; beta is 0. */
enum { ALL_PANELS = -1 };
void projection_product(const struct block *block, enum projection_index index, bool backward,
                        uint32_t thread, uint32_t rows, struct factors factors, int32_t panel);

/* The gradients of a projection's weights, from all rows of its input and of its outputs' gradient. */
struct projection_gradient {
    struct weight_gradient layer[LAYERS_MAX];
    uint32_t layers;
};
struct projection_gradient projection_gradient(const struct block *block, enum projection_index index,
                                               const float *x, const float *dy);
/* bf16: rounds the right factors, once for all panels. fp32: does nothing. */
void projection_round(const struct block *block, struct projection_gradient *const *list, uint32_t count);
void projection_add(struct projection_gradient *gradient, struct phase *phase);
