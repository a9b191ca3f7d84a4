/* The decorator. Only for the files of this folder. */
#ifndef ZERO_OFFLOAD_IMPLEMENTATIONS_H
#define ZERO_OFFLOAD_IMPLEMENTATIONS_H

#include "offload/tier.h"

/* Takes over `inner`, and closes it on failure. */
zero_status tier_faulty_wrap(struct tier *inner, const struct tier_options *options, struct tier **out_tier,
                             struct zero_error *error);

#endif
