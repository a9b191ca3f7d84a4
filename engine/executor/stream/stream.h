/* The streams: items that start, move and end. */
#pragma once

#include "engine/executor/executor_internal.h"

/* ---- perform.c: how each kind of operation is started, and whether it is done ---- */
zero_status perform_start(struct executor *e, struct item *item);
zero_status perform_test(struct executor *e, struct item *item, bool *out_done);

/* True if all remaining work of the item is queued on the device; the item is done when *out_ticket is done (0: it is
 * done). */
bool perform_queued(const struct executor *e, const struct item *item, uint64_t *out_ticket);

/* ---- ahead.c: operations that are queued on the device behind those for which they wait ---- */
bool ahead_possible(const struct executor *e);
/* The value of task.ahead, once the task's buffers are bound. */
uint8_t ahead_streams(const struct executor *e, const struct task *task);
/* True if the item before the task on its line is queued or done, and so are all before it; or if it is a release that waits for nothing
 * but the device. */
bool ahead_turn(const struct executor *e, const struct timeline *line, const struct task *task);
/* True if the operations of `stream` that the task waits for are queued or done. */
bool ahead_reached(const struct executor *e, const struct task *task, int stream);
/* Starts the item: its streams wait for operations that are queued and not done. item->before: the ticket of their work, where the
 * item waits for it. */
zero_status ahead_start(struct executor *e, struct item *item);
