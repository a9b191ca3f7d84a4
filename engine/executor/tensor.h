/* Norms of whole tensors. `norms`: those of the region, in memory that the host reaches; `param`: the tensor's place among the
 * region's. */
#ifndef ZERO_ENGINE_EXECUTOR_TENSOR_H
#define ZERO_ENGINE_EXECUTOR_TENSOR_H

#include "engine/executor/executor_internal.h"

/* fp32 words of a region's norms, of all parts. */
uint64_t tensor_words(const struct executor_shape *o, uint32_t region);
/* Clears the norms of this rank's shard, which begins at `first` in the region, before its first elements. */
void tensor_clear(const struct executor *e, uint32_t region, uint64_t first, struct tensor_norms *norms);
/* The same before the host measures. */
void tensor_begin(struct executor *e, uint32_t region, uint64_t first, struct tensor_norms *norms);
uint64_t tensor_part_end(const struct executor *e, uint32_t region, uint64_t first);
uint64_t tensor_end(const struct executor *e, uint32_t region, uint32_t param); /* in the region */
/* The first part of the update of elements of one tensor, of one rank's part; `first`: their place in the region. */
void tensor_measure_run(struct executor *e, uint32_t region, uint32_t param, uint64_t first,
                        const struct optimizer_args *args, struct tensor_norms *norms);
/* The same on a device. */
zero_status tensor_measure_queue(struct executor *e, struct item *item, uint32_t param,
                                 const struct optimizer_args *args, struct tensor_norms *norms);
/* Sets the trust ratio in the scalars from the norms of all parts. */
void tensor_trust(const struct executor *e, uint32_t region, uint32_t param, const struct tensor_norms *norms,
                  struct optimizer_scalars *scalars);

#endif
