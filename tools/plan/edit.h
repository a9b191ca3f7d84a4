/* Configurations as text: what the planner changes in one before an engine reads it. */
#ifndef ZERO_TOOLS_PLAN_EDIT_H
#define ZERO_TOOLS_PLAN_EDIT_H

#include "engine/base/dtype.h"
#include "engine/zero.h"
#include "tools/plan/shapes.h"

/* Each returns JSON text that the caller frees; NULL: no memory. `text`: of a configuration that was read without
 * error. */

/* The planner's own configuration, where the user gives none: AdamW in a type. */
char *edit_default(enum dtype dtype);

/* 0: as it is. With a micro-batch, train_batch_size follows. Without a schedule, which is of a run. */
char *edit_batch(const char *text, uint64_t micro_batch, uint64_t accumulation_steps);

/* Units are gathered when they are used, not ahead of it. */
char *edit_no_prefetch(const char *text);

/* What the rows of a table differ in. */
struct cell {
    uint32_t stage;
    zero_tier optimizer, params; /* where the state and, at stage 3, the parameters live */
    uint32_t recompute;          /* blocks that are computed again together; 0: none */
};

/* The stage and the tiers are a cell's, the width is the model's; what has no use there goes. */
char *edit_cell(const char *text, const struct cell *cell, const struct shapes *shapes);

#endif
