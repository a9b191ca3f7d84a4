/* The page that commits a step to a shadow. A later run reads it first, and can read it with any configuration. The extent begins
 * with two such pages, one for even and one for odd epochs. */
#pragma once

#include "engine/base/limits.h"
#include "engine/config/config.h"
#include "engine/state/notes.h"
#include "engine/state/training.h"

enum { COMMIT_OPTIMIZER_BYTES = 32 };

struct commit {
    uint64_t magic, layout, epoch, steps, skipped;
    struct loss_scale scale;
    double lr[GROUP_MAX];
    int64_t schedule_iteration;
    uint64_t model; /* fields of the layout, for a message that says what differs */
    uint32_t stage, ranks;
    char optimizer[COMMIT_OPTIMIZER_BYTES];
    char notes[NOTES_PACKED_BYTES];
    uint64_t checksum; /* of all before */
};

enum commit_state { COMMIT_NONE, COMMIT_WHOLE, COMMIT_DAMAGED };

/* `page`: CHUNK_ALIGN_BYTES. `commit` is zero but for what it says: its padding too. */
void commit_write(struct commit *commit, void *page);
/* *out is set if the page is whole. A page of zeros is none. */
enum commit_state commit_read(const void *page, struct commit *out);

/* The name of a rank's files. */
struct commit_file {
    char name[40];
};
struct commit_file commit_file(uint32_t rank, uint32_t ranks);

/* The last commit in the files of these directories, of this number of ranks or (`same` false) of any other. Epoch 0: there is none.
 * Reads the first pages of this user's files, and nothing else. */
void commit_search(const struct config_paths *paths, uint32_t ranks, bool same, struct commit *out);
