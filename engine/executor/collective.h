/* Gathers and reductions post calls. Where comm has one order of calls, an item posts its first call once all gathers and reductions
 * that were emitted before it, on the other streams, have posted their last one. */
#ifndef ZERO_ENGINE_EXECUTOR_COLLECTIVE_H
#define ZERO_ENGINE_EXECUTOR_COLLECTIVE_H

#include "engine/executor/executor_internal.h"

bool posts_calls(const struct operation *op);
bool has_posted(const struct item *item); /* its last call */
bool collective_turn(const struct executor *e, const struct item *item);
zero_status post_call(struct executor *e, struct item *item, struct comm_group *group,
                      const struct comm_call *call);
/* Posts a gather or a reduction, and adds comm's counters of that call to executor_traffic. `codes`: elements per
 * share whose codes are sent; 0: elements are sent. */
zero_status post_counted(struct executor *e, struct item *item, struct comm_group *group,
                         const struct comm_call *call, uint64_t codes);

#endif
