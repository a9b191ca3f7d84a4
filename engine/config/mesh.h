/* The mesh: how the ranks share parameters, gradients and states. Part of config_resolve. */
#ifndef ZERO_ENGINE_CONFIG_MESH_H
#define ZERO_ENGINE_CONFIG_MESH_H

#include "engine/config/config.h"

/* Sets shard_ranks and reshard. */
zero_status config_resolve_mesh(struct config *config, uint32_t ranks, struct zero_error *error);

#endif
