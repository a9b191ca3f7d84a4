/* The steps of an update by the host, or by the device. */
#ifndef ZERO_ENGINE_EXECUTOR_UPDATE_H
#define ZERO_ENGINE_EXECUTOR_UPDATE_H

#include "engine/executor/executor_internal.h"

/* Copies a whole gradient to the host's memory, where the host updates. */
zero_status leave_whole(struct executor *e, struct item *item);
zero_status bring_for_update(struct executor *e, struct item *item);
zero_status update(struct executor *e, struct item *item);
zero_status take_updated(struct executor *e, struct item *item);

#endif
