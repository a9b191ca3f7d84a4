/* Work and copies on the device. */
#ifndef ZERO_ENGINE_EXECUTOR_WORK_H
#define ZERO_ENGINE_EXECUTOR_WORK_H

#include "engine/executor/executor_internal.h"

/* Lets streams of the device (a bit for each) wait for a ticket; 0: for nothing. */
zero_status await_ticket(struct executor *e, uint8_t streams, uint64_t ticket);
/* Start work or a copy; the item awaits it. */
zero_status submit(struct executor *e, struct item *item, const struct kernel *kernel,
                   enum device_stream stream, const void *argument, struct device_work *work);
zero_status copy(struct executor *e, struct item *item, enum device_stream stream, void *target,
                 const void *source, uint64_t bytes);

#endif
