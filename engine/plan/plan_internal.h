/* The parts of plan_make. Only the files of this folder include this header. */
#pragma once

#include "engine/plan/interval.h"
#include "engine/plan/plan.h"

/* ---- fixed.c: the buffers of a plan that have a place of their own: what lives from step to step, and staging ---- */
/* Adds these buffers to the plan. It needs the layout of chunks and the rows' tiers. */
void fixed_make(struct plan *plan, const struct plan_options *options);

uint64_t plan_part_bytes(const struct plan *plan, uint32_t region, struct placement placement,
                         enum dtype dtype);
struct precision plan_precision(const struct plan *plan, uint32_t region);

/* ---- dry_run.c: the policy emits the operations of a step, and of an evaluation, and none of them is performed. It shows when each
 * gathered buffer is in use, and how many bytes move. ---- */
/* The length of plan.slot: an entry for each buffer that a use may gather or release. */
uint32_t dry_run_slots(const struct policy *policy);
/* The entry of a buffer at a position of the pass; NULL if that use does not have its region. */
uint32_t *dry_run_slot(const struct plan *plan, bool evaluating, uint32_t position, struct buffer_ref ref);

/* Free order within a bound: begins an interval for each buffer before the dry run. */
void dry_run_begin_apart(struct plan *plan, struct intervals *intervals);
/* Fills plan.slot, the intervals, and the plan's counts of bytes that a step moves. */
zero_status dry_run(struct plan *plan, struct intervals *intervals, struct zero_error *error);
