/* The scratch memory of a reduction's round, in its staging buffer. */
#ifndef ZERO_ENGINE_EXECUTOR_STAGING_H
#define ZERO_ENGINE_EXECUTOR_STAGING_H

#include "engine/executor/executor_internal.h"

/* The message. 0: the message takes the gradient's place. */
uint64_t staged_message_bytes(const struct executor_shape *o, const struct operation *op, uint64_t count);
/* The reduced shard, at the end of the buffer. */
uint64_t staged_shard_bytes(const struct executor_shape *o, const struct operation *op, uint64_t count);

#endif
