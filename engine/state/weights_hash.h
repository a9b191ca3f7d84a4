/* The hash of all weights: a sum over elements, so that no rank needs more than its shard. */
#ifndef ZERO_ENGINE_STATE_WEIGHTS_HASH_H
#define ZERO_ENGINE_STATE_WEIGHTS_HASH_H

#include "engine/state/state.h"

/* 32 hexadecimal digits and a final zero. Collective, after a settle. */
zero_status weights_hash(struct state *state, char out[33]);

#endif
