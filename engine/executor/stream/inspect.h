/* Looks at an executor's streams. The simulator uses it to report what waits for what. */
#pragma once

#include "engine/executor/executor.h"

/* The stream has an operation that was emitted and has not retired. */
bool stream_busy(const struct executor *executor, enum stream stream);

/* The oldest operation in flight; NULL: none. */
const struct operation *stream_in_flight(const struct executor *executor, enum stream stream);

/* The stream that the next operation of `stream` waits for. Returns `stream` itself if an operation of it is in
 * flight, or if nothing waits. */
enum stream stream_waits_for(const struct executor *executor, enum stream stream);

/* The memory of a tier, as given in executor_mechanisms. */
const void *executor_memory(const struct executor *executor, enum tier_kind tier);
