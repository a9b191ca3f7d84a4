/* Free order within a bound: what leaves the room. Without a bound, these functions do nothing. */
#ifndef ZERO_STAGES_EVICTION_H
#define ZERO_STAGES_EVICTION_H

#include "stages/policy.h"

/* A use begins, and its regions get room. */
void eviction_begin(struct policy *policy, uint32_t position, struct operation_list *out);
/* The present use ends. */
void eviction_end(struct policy *policy, struct operation_list *out);
/* All uses are over. */
void eviction_finish(struct policy *policy);

#endif
