/* Operations that are queued on the device behind those for which they wait. */
#ifndef ZERO_ENGINE_EXECUTOR_AHEAD_H
#define ZERO_ENGINE_EXECUTOR_AHEAD_H

#include "engine/executor/executor_internal.h"

bool ahead_possible(const struct executor *e);
/* The value of task.ahead, once the task's buffers are bound. */
uint8_t ahead_streams(const struct executor *e, const struct task *task);
/* True if all items before the task on its line are queued or done. */
bool ahead_turn(const struct executor *e, const struct timeline *line, const struct task *task);
/* True if the operations of `stream` that the task waits for are queued or done. */
bool ahead_reached(const struct executor *e, const struct task *task, int stream);
/* Starts the item: its streams wait for operations that are queued and not done. */
zero_status ahead_start(struct executor *e, struct item *item);

#endif
