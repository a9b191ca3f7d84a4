/* The steps of a gather. */
#ifndef ZERO_ENGINE_EXECUTOR_GATHER_H
#define ZERO_ENGINE_EXECUTOR_GATHER_H

#include "engine/executor/executor_internal.h"

zero_status bring_share(struct executor *e, struct item *item);
zero_status encode_share(struct executor *e, struct item *item);
zero_status post_gather(struct executor *e, struct item *item);
zero_status decode_shares(struct executor *e, struct item *item);

#endif
