/* Gradients that a host program computed in its own memory, taken into the engine's on several threads. Host memory only. */
#pragma once

#include "kernels/device_work.h"

/* The i-th of the arrays. Its `gradient` may be NULL: zero. Called by several threads at once. */
typedef struct gradient_take_argument (*gradient_item_fn)(const void *user, uint32_t i);

/* Does what kernel_gradient_take does, for each array. `threads`: at least 1; few elements use fewer. An element's result does not
 * depend on the number of threads. */
void gradients_take(gradient_item_fn item, const void *user, uint32_t items, uint32_t threads);
