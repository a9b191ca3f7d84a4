/* Checkpoints: saving, loading and deleting them. Collective, between steps, after a settle. */
#pragma once

#include "engine/checkpoint/storage.h"
#include "engine/state/state.h"

/* `storage`: the file system; tests bring their own. dir is shorter than STORAGE_PATH_BYTES. */
zero_status state_save(struct state *state, struct storage *storage, const char *dir);
zero_status state_prune(struct state *state, struct storage *storage, const char *dir, uint64_t keep);

/* What a load takes: all; the weights alone; or the averaged weights as the weights. With the last two, moments and counters begin
 * anew. */
enum load_what { LOAD_ALL, LOAD_WEIGHTS, LOAD_AVERAGE };

/* A failure after which half of the state may be new is sticky. The caller then gathers what is replicated again. */
zero_status state_load(struct state *state, struct storage *storage, const char *dir, enum load_what what);

/* The kinds of a checkpoint: 0 is the weights, 1 + i is state i; the last state may be the averaged weights. */
static inline zero_kind saved_kind(const struct manifest *m, uint32_t kind) {
    static const zero_kind kinds[] = {ZERO_PARAM, ZERO_STATE0, ZERO_STATE1};
    return kind && kind == manifest_average(m) ? ZERO_EMA : kinds[kind];
}
