/* Looks at an executor's streams. The simulator uses it to report what waits for what; tests use it to plant bugs. */
#ifndef ZERO_ENGINE_EXECUTOR_INSPECT_H
#define ZERO_ENGINE_EXECUTOR_INSPECT_H

#include "engine/executor/executor.h"

/* The stream has an operation that was emitted and has not retired. */
bool stream_busy(const struct executor *executor, enum stream stream);

/* The oldest operation in flight; NULL: none. */
const struct operation *stream_in_flight(const struct executor *executor, enum stream stream);

/* The operations of a kind that have started and are not done. */
uint32_t stream_under_way(const struct executor *executor, enum stream stream, enum operation_kind kind);

/* The stream that the next operation of `stream` waits for. Returns `stream` itself if an operation of it is in
 * flight, or if nothing waits. */
enum stream stream_waits_for(const struct executor *executor, enum stream stream);

/* Calls `edit` for each operation of the stream that was emitted and has not started. */
void stream_edit(struct executor *executor, enum stream stream,
                 void (*edit)(struct operation *op, void *user), void *user);

/* Limits the capacity of the operation list of one event, and of the list of one expanded operation. */
void executor_shorten_lists(struct executor *executor, uint32_t event, uint32_t expansion);

/* The memory of a tier, as given in executor_mechanisms. */
const void *executor_memory(const struct executor *executor, enum tier_kind tier);

#endif
