/* The rows of the tier table, and the decorator. Only for the files of this folder. */
#ifndef ZERO_OFFLOAD_IMPLEMENTATIONS_H
#define ZERO_OFFLOAD_IMPLEMENTATIONS_H

#include "offload/tier.h"

extern const struct tier_ops tier_device, tier_cpu, tier_nvme;

/* Takes over `inner`, and closes it on failure. */
zero_status tier_faulty_wrap(struct tier *inner, const struct tier_options *options, struct tier **out_tier,
                             struct zero_error *error);

#endif
