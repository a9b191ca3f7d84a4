/* Optimizers of a host's own that need more than an element at once. */
#ifndef ZERO_TESTS_ENGINE_OWN_SCOPES_H
#define ZERO_TESTS_ENGINE_OWN_SCOPES_H

#include "engine/zero.h"

/* Of scope tensor, with one state: a mean of gradients, whose step has the length lr times the norm of the tensor's weights. */
extern const zero_optimizer own_trusting;

/* Of scope matrix, with one state: a mean of gradients, whose rows, and then columns, get the norm 1. */
extern const zero_optimizer own_balanced;

#endif
