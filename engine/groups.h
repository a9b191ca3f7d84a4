/* Parameter groups: who is in which, what each is given. Group 0 has all that no other one takes; the configuration's
 * follow, then the host's. Not for others than the engine's files. */
#ifndef ZERO_ENGINE_GROUPS_H
#define ZERO_ENGINE_GROUPS_H

#include "engine/engine_internal.h"

/* After e->params[0] is set. */
void groups_open(zero_engine *e);

/* The group and flags of a parameter that the host declares, by the configuration's patterns. */
zero_status groups_assign(zero_engine *e, zero_param *param);

/* Once all are declared: every pattern found a parameter, every group has one, every list of the scheduler has a number
 * for each. */
zero_status groups_check(const zero_engine *e, struct zero_error *error);

/* Of what all ranks must give alike beside the model. */
uint64_t groups_hash(const zero_engine *e, uint64_t hash);

#endif
