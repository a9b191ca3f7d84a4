/* A save in the background ("checkpoint": {"async": true}): a thread per rank reads what this rank saves, region by region in
 * the order of the updates, into memory of the plan, from where it goes to the drive. Training goes on; the update of a
 * region waits until its state has been read. A step's agreement tells all ranks how far each is: once all files are
 * durable, rank 0 publishes, in the background too. Not for others than the engine's files. */
#ifndef ZERO_ENGINE_SAVER_H
#define ZERO_ENGINE_SAVER_H

#include "engine/engine_internal.h"

struct save; /* save.h */
struct saver;

/* Of the plan, by the configuration. */
uint64_t saver_bytes(const zero_engine *e);

/* After save_prepare and save_look: takes the save over, unless it fails. What fails later is in e->saved. Collective. */
zero_status saver_begin(zero_engine *e, struct save *save);

/* In a step: what this rank says in the agreement, and what follows from what all have said. */
void saver_say(const zero_engine *e, struct save_report *out);
zero_status saver_hear(zero_engine *e, const struct agreement *all);

/* Until the save is complete, or has failed: e->saved. Collective; ZERO_OK where there is none. The status: of the engine. */
zero_status saver_finish(zero_engine *e);

/* The engine ends: the save is left where it is. Local. */
void saver_drop(zero_engine *e);

/* The caller is this engine's saver. */
bool saver_is_me(const zero_engine *e);

#endif
