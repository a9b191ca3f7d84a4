/* The policy's own functions. Only the files of this folder include this header. */
#pragma once

#include "stages/policy.h"

/* ---- emit.c: appends operations to a list ---- */
struct operation *emit(struct operation_list *out, enum operation_kind kind, enum object object,
                       enum stream stream, uint32_t region);
void emit_reads(struct operation *op, enum buffer_kind kind, uint32_t region);
void emit_writes(struct operation *op, enum buffer_kind kind, uint32_t region);
/* Gives a gather to a lent region one of the planned staging buffers; they are used in turn. */
void emit_lent_staging(struct policy *policy, struct operation *op);

/* ---- param.c: the parameters of a region ---- */
void param_want(struct policy *policy, uint16_t region, uint32_t position, struct operation_list *out);
void param_after_use(struct policy *policy, uint16_t region, uint32_t position, struct operation_list *out);
void param_to_rest(struct policy *policy, uint16_t region, struct operation_list *out);
/* Releases a region inside a pass. `returns`: a later use gathers it again, from its second shard if the stage has one. */
void param_leave(struct policy *policy, uint16_t region, bool returns, struct operation_list *out);
void param_refresh(struct policy *policy, uint16_t region, struct operation_list *out);

/* ---- grad.c: the gradients of a region ---- */
enum buffer_kind grad_shard_buffer(const struct region *region);
void grad_begin(struct policy *policy, uint16_t region, uint32_t position, struct operation *compute);
void grad_to(struct policy *policy, uint16_t region, bool final, struct operation_list *out);
/* Reduces a partial gradient which a later backward may add to. */
void grad_leave(struct policy *policy, uint16_t region, struct operation_list *out);
/* Gives a reduction that needs scratch one of the planned staging buffers; reductions use them in turn. */
void grad_stage_through(struct policy *policy, struct operation *op);
void grad_clear(struct policy *policy, uint16_t region, struct operation_list *out);

/* ---- update.c: updates of regions ---- */
/* The legs that lead, of updates at the step; before update_region of all regions. */
void update_lead(struct policy *policy, uint16_t region, struct operation_list *out);
/* The other legs; of updates in the backward all. Then the refresh, where nothing rests sharded. */
void update_region(struct policy *policy, uint16_t region, enum outcome outcome, struct operation_list *out);

/* ---- gather_ahead.c: how far the policy gathers ahead ---- */
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

/* ---- room.c: free order within a bound: the room. Without a bound, these functions do nothing. ---- */
void room_open(struct policy *policy);
/* True if the region's buffer for this object counts in the room. */
bool takes_room(const struct region *region, enum object object);
/* An operation takes the bytes of a region's buffer, and waits until they are free. */
void room_take(struct policy *policy, enum object object, uint16_t region, struct operation *op);
/* The bytes are free once the operations emitted so far have read the buffer. */
void room_give(struct policy *policy, enum object object, uint16_t region, bool released);

/* ---- eviction.c: what leaves the room. Without a bound, these functions do nothing. ---- */
/* A use begins, and its regions get room. */
void eviction_begin(struct policy *policy, uint32_t position, struct operation_list *out);
/* The present use ends. */
void eviction_end(struct policy *policy, struct operation_list *out);
/* All uses are over. */
void eviction_finish(struct policy *policy);
