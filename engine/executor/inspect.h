/* What is on an executor's streams: for the simulator, which says what waits for what, and for tests that plant bugs. */
#ifndef ZERO_ENGINE_EXECUTOR_INSPECT_H
#define ZERO_ENGINE_EXECUTOR_INSPECT_H

#include "engine/executor/executor.h"

/* Something was emitted that has not retired. */
bool stream_busy(const struct executor *executor, enum stream stream);

/* The oldest operation in flight; NULL: none. */
const struct operation *stream_in_flight(const struct executor *executor, enum stream stream);

/* The stream whose operations the next operation of `stream` waits for; `stream` itself where something of it is in flight, or
 * nothing waits. */
enum stream stream_waits_for(const struct executor *executor, enum stream stream);

/* Calls `edit` for each operation that was emitted and has not started. */
void stream_edit(struct executor *executor, enum stream stream,
                 void (*edit)(struct operation *op, void *user), void *user);

/* The lists of one event, and of one of its operations expanded, get room for so few operations only. */
void executor_shorten_lists(struct executor *executor, uint32_t event, uint32_t expansion);

/* The extent of a tier, as executor_options gave it. */
const void *executor_memory(const struct executor *executor, enum tier_kind tier);

#endif
