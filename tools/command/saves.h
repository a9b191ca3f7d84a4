/* A run's checkpoints: where they are, what the trainer notes in them, and how it goes on from one. Collective, but for the
 * opening. */
#ifndef ZERO_TOOLS_COMMAND_SAVES_H
#define ZERO_TOOLS_COMMAND_SAVES_H

#include "tools/command/job.h"

struct saves {
    char directory[4096 + 16]; /* RUN/checkpoints, the same text on all ranks */
    bool told;                 /* that an old checkpoint could not be deleted */
};

/* How far a run is: both count from its beginning, resumed runs included. */
struct position {
    uint64_t steps;   /* of the trainer, skipped ones included */
    uint64_t samples; /* taken from the endless sequence (tools/data/order.h) */
};

/* `run`: the directory, the same text on all ranks. */
void saves_open(const char *run, struct saves *out);

/* From RUN/checkpoints: its latest, or `step` if that is not 0. One that no trainer wrote, an imported one, is a
 * beginning: position 0. */
zero_status saves_resume(zero_engine *engine, const char *run, uint64_t step, struct position *out);

/* What the drive keeps with "nvme": {"shadow": true}: zero_engine_recover. */
zero_status saves_recover(zero_engine *engine, zero_fill_fn fill, void *user, struct position *out);

/* After each step: how far the run is, for saves and shadows. Local. */
zero_status saves_note(zero_engine *engine, struct position position);

/* The save may go on in the background ("checkpoint": {"async": true}) until _end, which also deletes all but the `keep`
 * newest; 0: keeps all. One that cannot be deleted fails no save: rank 0 says it on stderr, once. */
zero_status saves_begin(zero_engine *engine, const struct saves *saves);
zero_status saves_end(zero_engine *engine, struct saves *saves, uint64_t keep);

#endif
