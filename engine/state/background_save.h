/* A save in the background ("checkpoint": {"async": true}): a thread per rank reads what this rank saves, region by region in
 * the order of the updates, into memory of the plan, and writes it from there to the drive. Training goes on; the update of a
 * region waits until its state has been read. A step's agreement tells all ranks how far each is: once all files are durable,
 * rank 0 publishes, in the background too. */
#pragma once

#include "engine/checkpoint/storage.h"
#include "engine/state/state.h"

/* A later failure is in state->saved. Collective. */
zero_status background_save_begin(struct state *state, struct storage *storage, const char *dir);

/* In a step: the value that this rank reports in the agreement, and the reaction to the values of all ranks. */
void background_save_report(const struct state *state, struct save_report *out);
zero_status background_save_hear(struct state *state, const struct agreement *all);

/* Waits until the save is complete, or has failed: state->saved. Collective; ZERO_OK where there is none. The status is the
 * engine's. */
zero_status background_save_finish(struct state *state);

/* For an engine that is destroyed: abandons the save. Local. */
void background_save_drop(struct state *state);
