/* The scheduler block: its defaults, "auto", and the parameters of each schedule. Part of config_resolve; runs after
 * the optimizer is resolved. */
#ifndef ZERO_ENGINE_CONFIG_SCHEDULER_H
#define ZERO_ENGINE_CONFIG_SCHEDULER_H

#include "engine/config/config.h"

zero_status config_resolve_scheduler(struct config *config, struct zero_error *error);

#endif
