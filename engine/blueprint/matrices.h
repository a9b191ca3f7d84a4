/* Optimizers that update whole matrices: where they are refused, and which rank owns which matrix. Pure. */
#ifndef ZERO_ENGINE_BLUEPRINT_MATRICES_H
#define ZERO_ENGINE_BLUEPRINT_MATRICES_H

#include "engine/blueprint/blueprint.h"

/* The parameters are matrices, and the terms leave room for operations on them. */
zero_status matrices_check(const struct blueprint *blueprint, struct zero_error *error);

/* Sets blueprint->matrix_owner: one rank of all for each matrix. In the order of updates, the largest matrix of a region goes to the
 * rank with the least work so far, the lowest one of equals. */
zero_status matrices_share_out(struct blueprint *blueprint, struct zero_error *error);

/* Scratch for the largest matrix. */
uint64_t matrices_scratch_bytes(const struct blueprint *blueprint);

#endif
