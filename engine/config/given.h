/* For the files that resolve keys: whether a key was written, and how to record a resolved value. */
#ifndef ZERO_ENGINE_CONFIG_GIVEN_H
#define ZERO_ENGINE_CONFIG_GIVEN_H

#include "engine/config/config.h"

bool config_written(const struct config *config, const char *path); /* a value, not "auto" */
bool config_automatic(const struct config *config, const char *path);

/* A key asks for recomputation and decides its interval. */
bool config_asks_recompute(const struct config *config);

/* Refuses activation checkpoints on a drive if their paths differ from `offload`, the paths that an offload to a
 * drive uses or may use. */
zero_status config_check_scratch(const struct config *config, const struct config_paths *offload,
                                 struct zero_error *error);

/* Refuses state and parameters whose paths differ, where both are or may be on a drive. */
zero_status config_check_offload(const struct config *config, struct zero_error *error);

/* Records a resolved value in the key's entry; the entry's source still shows "auto". config_derived_int changes
 * nothing if the key was written. */
zero_status config_derived(struct config *config, const char *path, const char *text,
                           struct zero_error *error);
zero_status config_derived_int(struct config *config, const char *path, uint64_t number,
                               struct zero_error *error);

#endif
