/* What to change when a budget is exceeded: found by planning it. Not for others than the engine's files. */
#ifndef ZERO_ENGINE_ADVICE_H
#define ZERO_ENGINE_ADVICE_H

#include "engine/engine_internal.h"

/* Plans again with the configuration as it is now, and with what that asks for: bytes per tier, reservations included.
 * Local. commit.c */
zero_status commit_try(zero_engine *e, uint64_t out_bytes[TIERS], struct zero_error *error);

/* A clause: which keys, each with a value with which all budgets hold, the model and the ranks as they are; `need` is what
 * the present plan takes. Leaves the plan and the configuration as they were. Local. */
void advice_write(zero_engine *e, const uint64_t need[TIERS], char *out, size_t capacity);

/* A clause: the largest owners of the tier. */
void advice_owners(const zero_engine *e, int tier, char *out, size_t capacity);

#endif
