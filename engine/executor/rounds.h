/* The rounds of gathers and reductions: which part of each share an item moves at a time, and with which calls. */
#ifndef ZERO_ENGINE_EXECUTOR_ROUNDS_H
#define ZERO_ENGINE_EXECUTOR_ROUNDS_H

#include "engine/executor/executor_internal.h"

bool scatters(const struct operation *op);
/* True if a chunk is scattered and then summed over the replicate axis; and the second of these operations. */
bool sums_replicas(const struct operation *op);
struct operation sum_of_scatter(const struct operation *op);

/* True if a reduction needs staging memory for its message, or for the reduced shard. */
bool stages_message(const struct executor_shape *o, const struct operation *op);
bool stages_shard(const struct executor_shape *o, const struct operation *op);

/* Elements of each share in a piece of all shares: whole blocks of the norm, one at least. */
uint64_t piece_elements(const struct executor_shape *o, enum dtype dtype, uint32_t shares);
/* The most elements of each share in a round. */
uint64_t round_elements(const struct executor_shape *o, const struct operation *op);
struct part item_part(const struct executor_shape *o, const struct operation *op, uint32_t index);
/* The elements that the item's next call moves, after `moved` elements. */
struct part round_part(const struct executor_shape *o, const struct operation *op, uint32_t index,
                       uint64_t moved);

/* The call of a reduction of `count` elements of each share. */
struct comm_call whole_call(const struct executor_shape *o, const struct operation *op, uint64_t count);
/* The call of a round, before coding. */
struct comm_call element_call(const struct executor_shape *o, const struct operation *op, uint32_t index,
                              uint64_t moved);

#endif
