/* The gradients of a region. */
#ifndef ZERO_STAGES_GRAD_H
#define ZERO_STAGES_GRAD_H

#include "stages/policy.h"

enum buffer_kind grad_shard_buffer(const struct region *region);
void grad_begin(struct policy *policy, uint16_t region, uint32_t position, struct operation *compute);
void grad_to(struct policy *policy, uint16_t region, bool final, struct operation_list *out);
/* Reduces a partial gradient which a later backward may add to. */
void grad_leave(struct policy *policy, uint16_t region, struct operation_list *out);
/* Gives a reduction that needs scratch one of the planned staging buffers; reductions use them in turn. */
void grad_stage_through(struct policy *policy, struct operation *op);
void grad_clear(struct policy *policy, uint16_t region, struct operation_list *out);

#endif
