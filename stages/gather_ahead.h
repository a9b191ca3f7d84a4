/* How far the policy gathers ahead. */
#ifndef ZERO_STAGES_GATHER_AHEAD_H
#define ZERO_STAGES_GATHER_AHEAD_H

#include "stages/policy.h"

/* A run of forward uses; it is empty if first > last. */
struct run {
    uint32_t first, last;
};

/* True if one of the use's regions rests sharded. */
bool policy_gathers(const struct policy *policy, const struct use *use);
/* True if two runs may be gathered at once while `in_use` is in use. */
bool policy_fits(struct policy *policy, struct run a, struct run b, const struct use *in_use);
/* Sets policy.kept_from. */
void policy_find_kept(struct policy *policy);
/* The last position that is gathered ahead while the use at `cursor` is in use. */
uint32_t policy_reach(struct policy *policy, uint32_t cursor);

#endif
