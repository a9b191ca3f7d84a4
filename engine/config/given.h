/* For the files that resolve: what was given, and showing what follows from it. */
#ifndef ZERO_ENGINE_CONFIG_GIVEN_H
#define ZERO_ENGINE_CONFIG_GIVEN_H

#include "engine/config/config.h"

bool config_written(const struct config *config, const char *path); /* a value, not "auto" */
bool config_automatic(const struct config *config, const char *path);

/* Shows what was resolved; "auto" stays visible as the source. _int: unless it was written. */
zero_status config_derived(struct config *config, const char *path, const char *text,
                           struct zero_error *error);
zero_status config_derived_int(struct config *config, const char *path, uint64_t number,
                               struct zero_error *error);

#endif
