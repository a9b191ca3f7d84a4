/* What happens to a block's rows, in steps: work on the rows of a tile, or a product with a projection.
 *
 * Usually a task takes a tile through all steps, so that its rows stay in the cache. If products are cut by columns
 * (cuts_columns), each step ends before the next begins, and a task of a product has a panel's columns of
 * PRODUCT_ROWS rows: a thread then reads a part of the weights, and packs each for more rows. The shape of a product depends
 * neither on the number of threads nor on the schedule. */
#pragma once

#include "tools/gpt/cpu/block.h"
#include "tools/gpt/cpu/phase.h"
#include "tools/gpt/cpu/projection.h"

enum { PRODUCT_ROWS = 128 };

struct step {
    void (*rows)(struct block *block, uint32_t tile, uint32_t thread); /* NULL: a product */
    /* From row `first` on, which is row `scratch` of arrays that have scratch of a thread or of all rows. */
    struct factors (*factors)(const struct block *block, uint64_t first, uint64_t scratch);
    enum projection_index index;
    bool backward;
};

#define COUNT_OF(array) (uint32_t)(sizeof(array) / sizeof(array)[0])

/* `beside`: tasks that run beside the first steps, or NULL. Its contexts stay until the return. */
void steps_run(struct block *block, const struct step *steps, uint32_t count, struct phase *beside);
