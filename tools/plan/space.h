/* The rows of a table: the settings that differ between them, in an order from the simplest row to the one that moves most data.
 * `zero plan` covers stages, tiers and recomputation, whatever a configuration says. A configuration with a key that is "auto"
 * (config_unchosen) opens these keys alone: then `zero plan` and `zero train` search the same rows. Pure. */
#ifndef ZERO_TOOLS_PLAN_SPACE_H
#define ZERO_TOOLS_PLAN_SPACE_H

#include "engine/config/config.h"
#include "tools/plan/edit.h"

enum { SPACE_MICROS_MAX = 10, SPACE_MICRO_ROWS = 108 /* rows that exist of one micro-batch, at most */ };

struct space {
    bool open; /* the configuration leaves keys to the search, and holds in all others */
    /* Each has all its values, or else the value of `fixed`. `tiered`: also state that fills the device's budget first. */
    bool stage, state, tiered, params, grads, recompute;
    struct cell fixed;
    bool on_drive;                    /* state has to be on the drive, alone: a shadow is kept there */
    bool no_drive;                    /* no path is given */
    bool cut;                         /* only stages that cut parameters: a key needs one */
    uint64_t micro[SPACE_MICROS_MAX]; /* from the largest on; 0: that of the text */
    uint32_t micros;
};

/* Stages, tiers of state and parameters, and recomputation: the space of a scenario that has none. */
extern const struct space space_all;

/* The rows that a configuration opens, after config_read, with the model block resolved. Resolves the configuration for `ranks`
 * ranks with the first row that it allows. *out_text: `text`, the configuration, without what is "auto" here, for edit_cell and
 * edit_run; the caller frees it. ZERO_E_CONFIG, ZERO_E_UNSUPPORTED: it allows no row. */
zero_status space_of(struct config *config, const char *text, uint32_t ranks, struct space *out,
                     char **out_text, struct zero_error *error);

/* The row of a number: from 0 on, all of a micro-batch before the next one. False: past the last. *out_exists: false where stage,
 * tiers and space do not go together. */
bool space_row(const struct space *space, uint32_t number, struct cell *out, bool *out_exists);

/* The row with the cell's values; a value that the row leaves to the text is not compared. False: there is none. */
bool space_find(const struct space *space, const struct cell *cell, struct cell *out_row);

/* The cell of a configuration after config_resolve. */
struct cell space_cell_of(const struct config *config);

bool cell_equal(const struct cell *a, const struct cell *b);

#endif
