/* Optimizers that need norms of whole tensors: where they are refused. Pure. */
#ifndef ZERO_ENGINE_BLUEPRINT_TENSORS_H
#define ZERO_ENGINE_BLUEPRINT_TENSORS_H

#include "engine/blueprint/blueprint.h"

/* The parameters are whole tensors, and the terms leave room for an update that reads the weights twice. */
zero_status tensors_check(const struct blueprint *blueprint, struct zero_error *error);

#endif
