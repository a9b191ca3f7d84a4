/* The phases of a save, and the data that a save carries from phase to phase. The ranks agree between phases. */
#pragma once

#include "engine/checkpoint/shard.h"
#include "engine/state/state.h"

struct save {
    struct state *state;
    const struct stored_view *view; /* the view of the thread that writes */
    struct storage *storage;
    struct zero_error left; /* a left-over that could not be removed: a warning, not a failure */
    char root[STORAGE_PATH_BYTES], written[STORAGE_PATH_BYTES];
    struct manifest manifest;
    uint32_t *model_param;    /* per parameter of the manifest: the index of its first part in the model */
    uint32_t *manifest_param; /* per owner in the model: its index in the manifest */
    struct piece *piece;
    uint32_t pieces;
    uint16_t *order; /* the regions in their order */
    uint32_t orders;
    uint64_t word[2];              /* reported by this rank at the end of a phase */
    const struct rank_report *all; /* reports of all ranks at the end of the phase before */

    float *block; /* BLOCK_BYTES, through which the shard passes */
    const struct storage_staging *staging;
    /* Elements of a piece, up to `end` of the parameter, have been copied; a failure ends the save. NULL: not called. */
    zero_status (*copied)(void *user, const struct piece *piece, uint64_t end, struct zero_error *error);
    void *user;
};

/* The phases before the writing. Collective. */
zero_status save_begin(struct save *save, struct state *state, struct storage *storage, const char *dir);

/* Local; each phase puts its report in `word`. */
zero_status save_write(struct save *save, struct zero_error *error); /* this rank's file, durable */
zero_status save_publish(struct save *save,
                         struct zero_error *error); /* rank 0; `all`: reports of save_write */

/* The region that a piece is of. */
uint32_t save_region(const struct save *save, const struct piece *piece);

void save_abandon(struct save *save); /* after a failure: removes the files that rank 0 made */
void save_free(struct save *save);
/* Keeps the status in state->saved; after a failure, abandons. Frees. */
void save_end(struct save *save, zero_status status);
