/* The parameters of a region. */
#ifndef ZERO_STAGES_PARAM_H
#define ZERO_STAGES_PARAM_H

#include "stages/policy.h"

void param_want(struct policy *policy, uint16_t region, uint32_t position, struct operation_list *out);
void param_settle(struct policy *policy, uint16_t region, uint32_t position, struct operation_list *out);
void param_to_rest(struct policy *policy, uint16_t region, struct operation_list *out);
/* Releases a region inside a pass. `returns`: a later use gathers it again, from its second shard if the stage has one. */
void param_leave(struct policy *policy, uint16_t region, bool returns, struct operation_list *out);
void param_refresh(struct policy *policy, uint16_t region, struct operation_list *out);

#endif
