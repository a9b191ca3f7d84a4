/* A run's checkpoints: their directory, the trainer's notes in them, and how a run continues from one. All functions
 * but saves_open are collective. */
#ifndef ZERO_TOOLS_COMMAND_SAVES_H
#define ZERO_TOOLS_COMMAND_SAVES_H

#include "tools/command/job.h"

struct saves {
    char directory[4096 + 16]; /* RUN/checkpoints, the same text on all ranks */
    uint64_t number;           /* of the last save's directory: updates, without skipped steps */
    bool told;                 /* rank 0 reported that an old checkpoint could not be deleted */
};

/* How far a run is. Both numbers count from the beginning of the run and include resumed parts. */
struct position {
    uint64_t steps;   /* steps of the trainer, with skipped steps */
    uint64_t samples; /* samples taken from the endless sequence (tools/data/order.h) */
    uint64_t planned; /* the steps that the run was to train; 0: not known */
};

/* `run`: the run's directory, the same text on all ranks. */
void saves_open(const char *run, struct saves *out);

/* Loads from RUN/checkpoints the latest checkpoint, or that with the number `step` if `step` is not 0. A checkpoint that no trainer
 * wrote, for example an imported one, has position 0. */
zero_status saves_resume(zero_engine *engine, const char *run, uint64_t step, struct position *out);

/* Recovers from the shadow on the drive ("nvme": {"shadow": true}): zero_engine_recover. */
zero_status saves_recover(zero_engine *engine, zero_fill_fn fill, void *user, struct position *out);

/* Called after each step: notes the position for saves and shadows. Local. */
zero_status saves_note(zero_engine *engine, struct position position);

/* Begins a save. It may continue in the background ("checkpoint": {"async": true}) until saves_end, which also deletes
 * all checkpoints except the newest `keep`; 0 keeps all. If an old checkpoint cannot be deleted, the save does not
 * fail; rank 0 reports it on stderr, once. */
zero_status saves_begin(zero_engine *engine, struct saves *saves);
zero_status saves_end(zero_engine *engine, struct saves *saves, uint64_t keep);

#endif
