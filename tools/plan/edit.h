/* Configurations as text: the planner's changes to one before an engine reads it. */
#ifndef ZERO_TOOLS_PLAN_EDIT_H
#define ZERO_TOOLS_PLAN_EDIT_H

#include "engine/base/dtype.h"
#include "engine/zero.h"
#include "tools/plan/shapes.h"

/* Each function returns JSON text that the caller frees; NULL: no memory. `text`: a configuration that was read without
 * error. */

/* The planner's own configuration, if the user gives none: AdamW with this dtype. */
char *edit_default(enum dtype dtype);

/* 0: not changed. A new micro-batch also changes train_batch_size. Removes the schedule, which belongs to a run. */
char *edit_batch(const char *text, uint64_t micro_batch, uint64_t accumulation_steps);

/* Units are gathered when they are used, not ahead. */
char *edit_no_prefetch(const char *text);

/* The settings that differ between the rows of a table. */
struct cell {
    uint32_t stage;
    zero_tier optimizer, params; /* tiers of the state and, at stage 3, of the parameters */
    uint32_t recompute;          /* blocks of a recomputed segment; 0: no recomputation */
};

/* The changes that edit_run makes beside the cell. */
struct edit_changes {
    uint64_t micro_batch, accumulate; /* 0: not changed */
    const char *block;                /* JSON text of another model block; NULL: the text's own */
    bool sizes;           /* the model block is written from the shapes alone, in Hugging Face's words */
    bool layers, context; /* these numbers of the model block are set to those of the shapes */
};

/* A configuration that trains as the cell says: its stage, tiers and recomputation; and with the changes. Paths of drives stay
 * as they are in the text, else they are EDIT_DRIVE. Indented. */
#define EDIT_DRIVE "/nvme"
char *edit_run(const char *text, const struct cell *cell, const struct shapes *shapes,
               const struct edit_changes *changes);

/* Sets the stage and the tiers of a cell and the model's width, and removes keys that have no use there. */
char *edit_cell(const char *text, const struct cell *cell, const struct shapes *shapes);

#endif
