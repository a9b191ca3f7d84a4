/* Filling, reading and writing state by element range, in bounded memory. Collective; the caller has settled the engine. */
#pragma once

#include "engine/state/state.h"

/* Fills all parameters of this rank, and sets the optimizer's states to zero. `fill` NULL: takes the parameters' values or spans.
 * Local: if a drive fails, the other ranks receive the failure at their next agreement. */
zero_status fill_all(struct state *state, zero_fill_fn fill, void *user);
/* Fills only the parameters that have no optimizer state. */
zero_status fill_frozen(struct state *state, zero_fill_fn fill, void *user);

/* ZERO_E_ARGUMENT names a parameter that has neither values nor spans; `what`: the call. */
zero_status fill_check_values(const struct state *state, const char *what, bool frozen_alone);

/* A request of the host's, checked. */
struct range {
    const struct model_param *param;
    zero_kind kind;
    uint64_t first, count; /* elements of the region */
};

/* ZERO_E_ARGUMENT names what is wrong; `what`: the call. */
zero_status range_check(const struct state *state, const char *what, const struct model_param *param,
                        zero_kind kind, const float *memory, uint64_t first, uint64_t count,
                        struct range *out);

/* The part of a parameter that this rank stores. */
struct range range_own(const struct state *state, const struct model_param *param, zero_kind kind);

/* Pieces travel from the rank that stores them to all others, one after another. */
zero_status range_get(struct state *state, const struct range *range, float *out);
zero_status range_put(struct state *state, const struct range *range, const float *in);

/* The bytes of rank `root` to all ranks. */
zero_status state_broadcast(struct state *state, uint32_t root, void *data, uint64_t bytes);
