/* Configurations as text: the planner's changes to one before an engine reads it. */
#pragma once

#include "engine/base/numbers/dtype.h"
#include "engine/zero.h"
#include "tools/plan/shapes.h"

/* Each function returns JSON text that the caller frees; NULL: no memory. `text`: a configuration that was read without
 * error. */

/* The planner's own configuration, if the user gives none: AdamW with this dtype. */
char *edit_default(uint32_t micro_batch, enum dtype dtype);

/* 0: not changed. A new micro-batch also changes train_batch_size. Removes the schedule, which belongs to a run. */
char *edit_batch(const char *text, uint64_t micro_batch, uint64_t accumulation_steps);

/* Units are gathered when they are used, not ahead. */
char *edit_no_prefetch(const char *text);

/* All state is offloaded: none fills the device. */
char *edit_ratio(const char *text);

/* The settings that differ between the rows of a table: a cell. */
struct cell {
    uint32_t stage;
    zero_tier optimizer, params; /* tiers of the state and, at stage 3, of the parameters */
    uint32_t recompute;          /* blocks of a recomputed segment; 0: no recomputation */
    bool tiered;                 /* the state fills the device's budget, then `optimizer` */
    uint32_t grads;              /* 1 + the tier of the reduced gradients; 0: as the text has it */
    uint64_t micro_batch;        /* 0: as the text has it */
};

/* What the cell's stage shards. */
bool cell_shards_params(const struct cell *cell);
bool cell_shards_grads(const struct cell *cell);

/* For a search of a part of the keys: removes the interval of recomputation if it is "auto", and writes out a type that is. `train_batch`
 * above 0: sets it, and removes the keys that share it out. */
char *edit_open(const char *text, uint64_t train_batch, enum dtype compute);

/* The changes that edit_run makes beside the cell. */
struct edit_changes {
    enum edit_recompute {
        EDIT_RECOMPUTE_CELL,     /* the block activation_checkpointing is made anew from the cell */
        EDIT_RECOMPUTE_INTERVAL, /* the interval is the cell's */
        EDIT_RECOMPUTE_KEPT
    } recompute;
    uint32_t ranks; /* above 0: a comment at the beginning names them; edit_ranks reads it */
    uint64_t micro_batch, accumulate; /* 0: not changed */
    const char *block;                /* JSON text of another model block; NULL: the text's own */
    bool sizes;           /* the model block is written from the shapes alone, in Hugging Face's words */
    bool layers, context; /* these numbers of the model block are set to those of the shapes */
};

/* A configuration that trains as the cell says: its stage, tiers and recomputation; and with the changes. The path of offloads is
 * that of the state if the cell has the state on the drive, else that of the parameters, or the other one if that is missing.
 * Checkpoints have their own path, or the path of offloads. Without any path: EDIT_DRIVE. The text is indented. */
#define EDIT_DRIVE "/nvme"
char *edit_run(const char *text, const struct cell *cell, const struct shapes *shapes,
               const struct edit_changes *changes);

/* The beginning of every text with such a comment. */
#define EDIT_BEGINNING "{\n  \"_comment_auto\""
/* 0: there is no such comment. */
uint32_t edit_ranks(const char *text);

/* Sets the stage and the tiers of a cell and the model's width, and removes keys that have no use there. */
char *edit_cell(const char *text, const struct cell *cell, const struct shapes *shapes);
