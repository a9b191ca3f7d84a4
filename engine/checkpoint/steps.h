/* The root directory holds the checkpoints of a run. This file says how a checkpoint is made and deleted:
 *
 *   ROOT/.step_00000100.saving     being written; no reader looks at it
 *   ROOT/step_00000100             complete: it gets this name by one rename, when its content is durable
 *   ROOT/latest                    the name of the newest complete checkpoint, and a checksum; written last
 *   ROOT/.step_00000050.removed    being deleted
 *   ROOT/.step_00000100.replaced   where the file system cannot exchange directories: a checkpoint that is being replaced. It is
 *                                  that of the step while no other is
 *
 * A name that begins with a dot is a leftover of a crash, if no save is running. The next save removes it.
 *
 * A directory that holds an entry that no save makes (a link, a directory) is not deleted, not even in part. A
 * checkpoint with such an entry keeps its name. A leftover with such an entry makes a save fail only if that save
 * needs the leftover's name.
 *
 * Only one process at a time may change a root. */
#pragma once

#include "engine/checkpoint/storage.h"

bool steps_parse(const char *name, uint64_t *out_step);

/* Finds the directory of a step: `path` itself if it has a manifest, else the directory that `latest` in `path` names,
 * else the only checkpoint in `path`. ZERO_E_ABSENT: there is none. */
zero_status steps_find(struct storage *storage, const char *path, char out[STORAGE_PATH_BYTES],
                       struct zero_error *error);

/* Lists the complete steps in ascending order; the caller frees the list. No steps: *out_steps is NULL. */
zero_status steps_list(struct storage *storage, const char *root, uint64_t **out_steps, uint32_t *out_count,
                       struct zero_error *error);

/* ZERO_E_ARGUMENT: the root holds a checkpoint already, or `latest`. Makes the root if it does not exist. */
zero_status steps_check_none(struct storage *storage, const char *root, struct zero_error *error);

/* Makes the root if it does not exist, removes leftovers, and makes the directory to write to. `left`: a warning with
 * the first leftover that could not be removed, and the reason. The caller clears `left` first. */
zero_status steps_begin(struct storage *storage, const char *root, uint64_t step,
                        char out[STORAGE_PATH_BYTES], struct zero_error *left, struct zero_error *error);

/* Tries in the root what saves need of a file system, with a few bytes, and leaves nothing there. ZERO_E_IO: a save would
 * fail. */
zero_status steps_try(struct storage *storage, const char *root, struct zero_error *error);

/* The name of the directory that steps_begin makes, for the ranks that do not call steps_begin. */
zero_status steps_written(const char *root, uint64_t step, char out[STORAGE_PATH_BYTES],
                          struct zero_error *error);

/* All files in `written` (from steps_begin) are durable. Makes `written` the checkpoint of the step, and the latest.
 * It replaces an older checkpoint of the step. `left`: as for steps_begin, for that older checkpoint. */
zero_status steps_publish(struct storage *storage, const char *root, uint64_t step, const char *written,
                          struct zero_error *left, struct zero_error *error);

void steps_abandon(struct storage *storage, const char *written); /* deletes `written`; ignores failures */

/* Deletes all checkpoints up to the latest, but keeps the `keep` newest of them (at least one). Checkpoints of later
 * steps belong to another run: they stay, and are not counted. So do those whose note "run" is not `run` (NULL: the run has
 * no id), and those whose manifest cannot be read. A checkpoint that cannot be read or deleted does not keep the
 * others from being deleted; the first failure is returned. */
zero_status steps_prune(struct storage *storage, const char *root, const char *run, uint64_t keep,
                        struct zero_error *error);
