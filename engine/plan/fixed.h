/* The buffers of a plan that have a place of their own: what lives from step to step, and staging. Only the files of this folder include
 * this header. */
#ifndef ZERO_ENGINE_PLAN_FIXED_H
#define ZERO_ENGINE_PLAN_FIXED_H

#include "engine/plan/plan.h"

/* Adds these buffers to the plan. It needs the layout of chunks and the rows' tiers. */
void fixed_make(struct plan *plan, const struct plan_options *options);

uint64_t plan_part_bytes(const struct plan *plan, uint32_t region, struct placement placement,
                         enum dtype dtype);
struct precision plan_precision(const struct plan *plan, uint32_t region);

#endif
