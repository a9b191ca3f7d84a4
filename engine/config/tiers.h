/* Where state, parameters and gradients are: the tiers, and the directories of the drive. Part of config_resolve. */
#ifndef ZERO_ENGINE_CONFIG_TIERS_H
#define ZERO_ENGINE_CONFIG_TIERS_H

#include <stdbool.h>

#include "engine/config/config.h"

/* Sets the tiers of the optimizer state, of parameters and of gradients, and the device's share. */
zero_status config_resolve_offload(struct config *config, struct zero_error *error);

bool config_same_paths(const struct config_paths *a, const struct config_paths *b);

/* Refuses a directory that stands twice. `path`: the block of nvme_path. */
zero_status config_check_distinct(const char *path, const struct config_paths *paths,
                                  struct zero_error *error);

#endif
