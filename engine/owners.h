/* Who owns the memory of a plan. Not for others than the engine's files. */
#ifndef ZERO_ENGINE_OWNERS_H
#define ZERO_ENGINE_OWNERS_H

#include "engine/engine_internal.h"

/* All of them, the largest first; *out_list is the caller's to free, NULL where there is no memory. Returns their number. */
uint32_t owners_list(const zero_engine *e, zero_memory_owner **out_list);

#endif
