/* The scheduler block: defaults, "auto", what belongs to which schedule. Part of config_resolve, after the optimizer. */
#ifndef ZERO_ENGINE_CONFIG_SCHEDULER_H
#define ZERO_ENGINE_CONFIG_SCHEDULER_H

#include "engine/config/config.h"

zero_status config_resolve_scheduler(struct config *config, struct zero_error *error);

#endif
