/* The rows of a table: the settings that differ between them, in an order from the simplest row to the one that moves most data.
 * `zero plan` covers stages, tiers and recomputation, whatever a configuration says. A configuration with a key that is "auto"
 * (config_unchosen) opens these keys alone: then `zero plan` and `zero train` search the same rows. Pure. */
#pragma once

#include "engine/config/config.h"
#include "tools/plan/edit.h"

enum { SPACE_MICROS_MAX = 10 };

struct space {
    bool open; /* the configuration leaves some keys to the search; all its other keys hold */
    /* True: the search tries all values of the setting; false: it uses the value in `fixed`. `tiered`: also tries
     * state that fills the device's budget first. */
    bool stage, state, tiered, params, grads, recompute;
    struct cell fixed;
    /* the state must be on the drive, and nowhere else, because of a shadow */
    bool on_drive;
    bool no_drive;                    /* no path is given */
    bool cut;                         /* only stages that shard parameters, because a key needs one */
    uint64_t micro[SPACE_MICROS_MAX]; /* from the largest on; 0: that of the text */
    uint32_t micros;
};

/* Stages, tiers of state and parameters, and recomputation: the space of a scenario that has none. */
extern const struct space space_all;

/* The rows that a configuration opens, after config_read, with the model block resolved. Resolves the configuration for `ranks`
 * ranks with the first row that it allows. *out_text: `text`, the configuration, without the values that are "auto" here, for
 * edit_cell and edit_run; the caller frees it. ZERO_E_CONFIG, ZERO_E_UNSUPPORTED: it allows no row. */
zero_status space_of(struct config *config, const char *text, uint32_t ranks, struct space *out,
                     char **out_text, struct zero_error *error);

/* The row with a number, from 0 on; all rows of one micro-batch come before those of the next. False: past the last. *out_exists:
 * false if this combination of stage and tiers is not in the space. */
bool space_row(const struct space *space, uint32_t number, struct cell *out, bool *out_exists);

/* The row with the cell's values; a value that the row leaves to the text is not compared. False: there is none. */
bool space_find(const struct space *space, const struct cell *cell, struct cell *out_row);

/* The cell of a configuration after config_resolve. */
struct cell space_cell_of(const struct config *config);

bool cell_equal(const struct cell *a, const struct cell *b);
