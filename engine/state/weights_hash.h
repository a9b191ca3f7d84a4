/* The hash of all weights: a sum over elements, so that no rank needs more than its shard. */
#ifndef ZERO_ENGINE_STATE_WEIGHTS_HASH_H
#define ZERO_ENGINE_STATE_WEIGHTS_HASH_H

#include "engine/state/state.h"

/* 32 hexadecimal digits and a final zero. Collective, after a settle. */
zero_status weights_hash(struct state *state, char out[33]);

/* Adds the words of the elements of a parameter that this rank counts. The sums of all data ranks make two hashes of its weights. */
zero_status weights_hash_param(struct state *state, const struct model_param *param, uint64_t sum[2]);

#endif
