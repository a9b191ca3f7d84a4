/* Regions in the host program's memory. These functions take the places of steps. */
#ifndef ZERO_ENGINE_EXECUTOR_LENT_H
#define ZERO_ENGINE_EXECUTOR_LENT_H

#include "engine/executor/executor_internal.h"

zero_status lent_gather(struct executor *e, struct item *item, struct comm_call call);
zero_status lent_take_gathered(struct executor *e, struct item *item);
zero_status lent_reduce(struct executor *e, struct item *item, struct comm_call call);
zero_status lent_take_sum(struct executor *e, struct item *item);
/* The staging bytes of a reduction whose gradient is lent; `call` has the whole share. */
uint64_t lent_reduce_bytes(const struct comm_group *group, struct comm_call call);

#endif
