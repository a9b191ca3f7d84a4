/* The steps of a reduction. */
#ifndef ZERO_ENGINE_EXECUTOR_REDUCE_H
#define ZERO_ENGINE_EXECUTOR_REDUCE_H

#include "engine/executor/executor_internal.h"

zero_status make_message(struct executor *e, struct item *item);
zero_status encode_message(struct executor *e, struct item *item);
zero_status bring_shard(struct executor *e, struct item *item);
zero_status post_reduce(struct executor *e, struct item *item);
zero_status decode_sum(struct executor *e, struct item *item);
zero_status sum_replicas(struct executor *e, struct item *item);
zero_status norm_shard(struct executor *e, struct item *item);
zero_status leave_shard(struct executor *e, struct item *item);
zero_status add_left(struct executor *e, struct item *item);
zero_status end_round(struct executor *e, struct item *item);

/* True if later items may post after this call: the item has one round only, and no norm to which rounds of other
 * items would add. */
bool reduce_posts_once(const struct executor *e, const struct item *item);

#endif
