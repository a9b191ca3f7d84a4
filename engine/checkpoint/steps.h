/* The directory that holds a run's checkpoints, and how one of them comes and goes:
 *
 *   ROOT/.step_00000100.saving     being written; no reader looks at it
 *   ROOT/step_00000100             complete: it gets this name by one rename, after all in it is durable
 *   ROOT/latest                    the name of the newest complete one, and its checksum; moves last
 *   ROOT/.step_00000050.removed    being deleted
 *
 * Names that begin with a dot are left-overs of a crash once nobody saves: the next save removes them. What
 * cannot be removed whole, as it holds what no save makes, stays whole: a checkpoint under its name. It fails a save
 * only where it has the very name that the save needs. One process at a time changes a root. */
#ifndef ZERO_ENGINE_CHECKPOINT_STEPS_H
#define ZERO_ENGINE_CHECKPOINT_STEPS_H

#include "engine/checkpoint/storage.h"

enum { STEP_NAME_BYTES = 32 };

void steps_name(uint64_t step, char out[STEP_NAME_BYTES]); /* "step_00000100" */
bool steps_parse(const char *name, uint64_t *out_step);

/* The directory that `path` means: itself where it holds a manifest, else the one that its `latest` names. */
zero_status steps_find(struct storage *storage, const char *path, char out[STORAGE_PATH_BYTES],
                       struct zero_error *error);

/* The complete ones, ascending; allocated. None: *out_steps is NULL. */
zero_status steps_list(struct storage *storage, const char *root, uint64_t **out_steps, uint32_t *out_count,
                       struct zero_error *error);

/* Makes the root if it is not there, removes left-overs, and makes the directory to write to. `left`: which left-over
 * stays and why, the first, as a warning; cleared by the caller. */
zero_status steps_begin(struct storage *storage, const char *root, uint64_t step,
                        char out[STORAGE_PATH_BYTES], struct zero_error *left, struct zero_error *error);

/* The directory that steps_begin makes, for the ranks that did not call it. */
zero_status steps_written(const char *root, uint64_t step, char out[STORAGE_PATH_BYTES],
                          struct zero_error *error);

/* All files in `written` (steps_begin's) are durable: makes it the step's checkpoint, in place of one that is
 * there, and the latest. `left`: as for steps_begin, of the one that it replaced. */
zero_status steps_publish(struct storage *storage, const char *root, uint64_t step, const char *written,
                          struct zero_error *left, struct zero_error *error);

void steps_abandon(struct storage *storage, const char *written); /* as far as the file system lets */

/* Deletes all but the `keep` newest up to the latest; later ones are another run's and stay. The first failure; the
 * others are deleted all the same. */
zero_status steps_prune(struct storage *storage, const char *root, uint64_t keep, struct zero_error *error);

#endif
