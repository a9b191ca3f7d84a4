/* How each kind of operation is started, and whether it is done. */
#ifndef ZERO_ENGINE_EXECUTOR_PERFORM_H
#define ZERO_ENGINE_EXECUTOR_PERFORM_H

#include "engine/executor/executor_internal.h"

zero_status perform_start(struct executor *e, struct item *item);
zero_status perform_test(struct executor *e, struct item *item, bool *out_done);

/* True if all remaining work of the item is queued on the device; the item is done when *out_ticket is done (0: it is
 * done). */
bool perform_queued(const struct executor *e, const struct item *item, uint64_t *out_ticket);

#endif
