/* What save and load share: how kinds and parameters of a checkpoint are those of the engine. Tests reach the
 * file system's table through it; not for others. */
#ifndef ZERO_ENGINE_SAVED_H
#define ZERO_ENGINE_SAVED_H

#include "engine/checkpoint/storage.h"
#include "engine/zero.h"

/* zero_engine_save and _load on another file system. */
zero_status engine_save(zero_engine *engine, struct storage *storage, const char *dir);
zero_status engine_prune(zero_engine *engine, struct storage *storage, const char *dir, uint64_t keep);
zero_status engine_load(zero_engine *engine, struct storage *storage, const char *dir, int weights_only);

/* Kind of a checkpoint: 0 the weights, 1 + i state i. */
static inline zero_kind saved_kind(uint32_t kind) {
    static const zero_kind kinds[] = {ZERO_PARAM, ZERO_STATE0, ZERO_STATE1};
    return kinds[kind];
}

#endif
