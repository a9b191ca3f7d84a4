/* How the ranks divide where the host cuts its model itself (zero_runtime.model_size): the ranks with one model rank, its *data
 * ranks*, have the same piece of the model and train it as ZeRO does; one rank of each model rank make a whole model. */
#pragma once

#include "engine/ranks/ranks.h"

/* Sets model_rank, data_rank, their sizes, the tables and data_world, from the values that each rank gives; a model_size of 0
 * counts as 1. Call it once `world` is open. Fails in the same way on all ranks. Collective. */
zero_status model_ranks_open(struct ranks *ranks, uint32_t model_rank, uint32_t model_size,
                             struct zero_error *error);

/* The same where the other ranks exist only in a plan: model ranks are adjacent. */
zero_status model_ranks_plan(struct ranks *ranks, uint32_t model_rank, uint32_t model_size,
                             struct zero_error *error);

void model_ranks_close(struct ranks *ranks);

/* The rank that is `data` among the data ranks of `model`. */
static inline uint32_t model_ranks_at(const struct ranks *ranks, uint32_t model, uint32_t data) {
    return ranks->at[model * ranks->data_size + data];
}

static inline uint32_t model_rank_of(const struct ranks *ranks, uint32_t rank) {
    return ranks->place[rank] / ranks->data_size;
}

static inline uint32_t data_rank_of(const struct ranks *ranks, uint32_t rank) {
    return ranks->place[rank] % ranks->data_size;
}

/* The first rank that has the same model rank. */
static inline uint32_t model_ranks_first(const struct ranks *ranks, uint32_t rank) {
    return model_ranks_at(ranks, model_rank_of(ranks, rank), 0);
}
