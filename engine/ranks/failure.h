/* The sentence of this thread's last failure: what zero_last_error returns. */
#ifndef ZERO_ENGINE_RANKS_FAILURE_H
#define ZERO_ENGINE_RANKS_FAILURE_H

#include "engine/base/error.h"
#include "engine/zero.h"

/* Keeps the sentence. Returns `status`. */
zero_status last_error_set(zero_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The caller made a mistake: the call returns, and nothing changes. */
#define refuse last_error_set

zero_status refuse_error(const struct zero_error *error);

#endif
