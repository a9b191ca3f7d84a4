/* How the policy's files append operations; not for others. */
#ifndef ZERO_STAGES_EMIT_H
#define ZERO_STAGES_EMIT_H

#include "stages/policy.h"

struct operation *emit(struct operation_list *out, enum operation_kind kind, enum object object,
                       enum stream stream, uint32_t region);
void emit_reads(struct operation *op, enum buffer_kind kind, uint32_t region);
void emit_writes(struct operation *op, enum buffer_kind kind, uint32_t region);

/* The policy's own (policy.c): uses before `position` are skipped; one of a use's regions rests sharded. */
void policy_skip_to(struct policy *policy, uint32_t position, struct operation_list *out);
bool policy_gathers(const struct policy *policy, const struct use *use);

/* Whether two runs of forward uses (empty: first > last) may be gathered at once while one of them is in use; how far the
 * use at `cursor` looks ahead. */
struct run {
    uint32_t first, last;
};
bool policy_fits(struct policy *policy, struct run a, struct run b, const struct use *in_use);
uint32_t policy_reach(struct policy *policy, uint32_t cursor);

/* Parameters (param.c). */
void param_want(struct policy *policy, uint16_t region, uint32_t position, struct operation_list *out);
void param_settle(struct policy *policy, uint16_t region, uint32_t position, struct operation_list *out);
void param_to_rest(struct policy *policy, uint16_t region, struct operation_list *out);
void param_refresh(struct policy *policy, uint16_t region, struct operation_list *out);

/* Gradients (grad.c). */
enum buffer_kind grad_shard_buffer(const struct region *region);
void grad_begin(struct policy *policy, uint16_t region, uint32_t position, struct operation *compute);
void grad_to(struct policy *policy, uint16_t region, bool final, struct operation_list *out);
void grad_clear(struct policy *policy, uint16_t region, struct operation_list *out);

static inline bool rests_replicated(const struct region *r) {
    return placement_is(r->rest, REPLICATE, REPLICATE);
}

#endif
