/* The batch of a step: how ranks and micro-steps share it. Part of config_resolve. */
#ifndef ZERO_ENGINE_CONFIG_BATCH_H
#define ZERO_ENGINE_CONFIG_BATCH_H

#include "engine/config/config.h"

/* Sets train_batch, micro_batch and accumulation_steps. */
zero_status config_resolve_batch(struct config *config, uint32_t ranks, struct zero_error *error);

#endif
