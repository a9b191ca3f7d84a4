/* What the executor knows of a region: its policy, types, optimizer and unit, and the sizes of its parts. */
#ifndef ZERO_ENGINE_EXECUTOR_REGION_H
#define ZERO_ENGINE_EXECUTOR_REGION_H

#include "engine/executor/executor_internal.h"

const struct region *policy_region(const struct executor *e, uint32_t region);
/* The region behind a reference, if the host program's memory takes the buffer's place; else NULL. */
const struct model_region *lent_region(const struct executor *e, struct buffer_ref ref);
/* Which type is where in a region. */
struct precision precision_of(const struct executor_shape *o, uint32_t region);
/* The same for an operation: directions are fp32, also when sent. Norms of tensors are sent as words of the size of
 * fp32. */
struct precision moved_precision(const struct executor_shape *o, const struct operation *op);
/* Elements of one part of a region under a placement, and of the part that this rank holds. */
uint64_t part_elements(const struct executor_shape *o, uint32_t region, struct placement placement);
uint64_t shard_elements(const struct executor *e, uint32_t region, struct placement placement);
/* The gradient shard that a reduction writes: its placement, also where the step needs the whole gradient, and its
 * size. */
struct placement grad_shard_placement(const struct region *r);
const struct optimizer *region_optimizer(const struct executor *e, uint32_t region);
const char *unit_name(const struct executor *e, uint32_t region);

#endif
