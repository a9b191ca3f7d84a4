/* Gradient norms, and the steps of an agreement. */
#ifndef ZERO_ENGINE_EXECUTOR_NORMS_H
#define ZERO_ENGINE_EXECUTOR_NORMS_H

#include "engine/executor/executor_internal.h"

zero_status complete_norms(struct executor *e, struct item *item);
zero_status post_agreement(struct executor *e, struct item *item);

/* The function that takes the norm of a shard while the reduction writes it. */
comm_written_fn norm_of_written(enum dtype dtype);
/* The norm of a shard on a device. */
zero_status norm_on_device(struct executor *e, struct item *item, uint32_t region, struct part part,
                           const void *elements);
/* The places of a norm that the kernel of a sum takes. */
void norm_with_sum(const struct executor *e, uint32_t region, struct part part, struct comm_norm *out);
void norm_in_memory(struct executor *e, uint32_t region, struct part part, const void *elements);
/* The same without `normed`, in work of the device. */
void add_norm_in_memory(struct executor *e, uint32_t region, struct part part, const void *elements);
/* Completes a lent gradient, and takes its norm. */
void lent_sum(struct executor *e, uint32_t region);

#endif
