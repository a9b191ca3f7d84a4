/* Functions that the policy's files share. Only for the files of this folder. */
#ifndef ZERO_STAGES_EMIT_H
#define ZERO_STAGES_EMIT_H

#include "stages/policy.h"

struct operation *emit(struct operation_list *out, enum operation_kind kind, enum object object,
                       enum stream stream, uint32_t region);
void emit_reads(struct operation *op, enum buffer_kind kind, uint32_t region);
void emit_writes(struct operation *op, enum buffer_kind kind, uint32_t region);
/* Gives a gather to a lent region one of the planned staging buffers; they are used in turn. */
void emit_lent_staging(struct policy *policy, struct operation *op);

/* policy.c: skips the uses before `position`; true if one of the use's regions rests sharded. */
void policy_skip_to(struct policy *policy, uint32_t position, struct operation_list *out);
bool policy_gathers(const struct policy *policy, const struct use *use);

/* matrix.c: makes the directions of a region. Returns the buffer that has them. Taking an update back needs no directions: it only
 * restores the states. */
struct buffer_ref matrix_direct(struct policy *policy, uint16_t region, enum outcome outcome,
                                struct operation_list *out);

/* tensor.c: the first half of an update that needs norms of whole tensors. Taking an update back needs no norms: it only restores
 * the states. */
void tensor_measure(struct policy *policy, uint16_t region, enum outcome outcome, struct operation_list *out);

/* A run of forward uses; it is empty if first > last. policy_fits: true if two runs may be gathered at once while
 * `in_use` is in use. policy_reach: the last position that is gathered ahead while the use at `cursor` is in use. */
struct run {
    uint32_t first, last;
};
bool policy_fits(struct policy *policy, struct run a, struct run b, const struct use *in_use);
uint32_t policy_reach(struct policy *policy, uint32_t cursor);

/* room.c: free order within a bound; without a bound these do nothing. room_begin: a use begins, and its regions get room.
 * room_end: the present use ends. room_finish: all uses are over. room_take: an operation takes the bytes of a region's buffer,
 * and waits until they are free. room_give: the bytes are free once the operations emitted so far have read the buffer. */
void room_open(struct policy *policy);
void room_begin(struct policy *policy, uint32_t position, struct operation_list *out);
void room_end(struct policy *policy, struct operation_list *out);
void room_finish(struct policy *policy);
void room_take(struct policy *policy, enum object object, uint16_t region, struct operation *op);
void room_give(struct policy *policy, enum object object, uint16_t region, bool released);

/* param.c: parameters. */
void param_want(struct policy *policy, uint16_t region, uint32_t position, struct operation_list *out);
void param_settle(struct policy *policy, uint16_t region, uint32_t position, struct operation_list *out);
void param_to_rest(struct policy *policy, uint16_t region, struct operation_list *out);
/* Releases a region inside a pass. `returns`: a later use gathers it again, from its second shard if the stage has one. */
void param_leave(struct policy *policy, uint16_t region, bool returns, struct operation_list *out);
void param_refresh(struct policy *policy, uint16_t region, struct operation_list *out);

/* grad.c: gradients. */
enum buffer_kind grad_shard_buffer(const struct region *region);
void grad_begin(struct policy *policy, uint16_t region, uint32_t position, struct operation *compute);
void grad_to(struct policy *policy, uint16_t region, bool final, struct operation_list *out);
/* Reduces a partial gradient which a later backward may add to. */
void grad_leave(struct policy *policy, uint16_t region, struct operation_list *out);
/* Gives a reduction that needs scratch one of the planned staging buffers; reductions use them in turn. */
void grad_stage_through(struct policy *policy, struct operation *op);
void grad_clear(struct policy *policy, uint16_t region, struct operation_list *out);

static inline bool rests_replicated(const struct region *r) {
    return placement_is(r->rest, REPLICATE, REPLICATE);
}

#endif
