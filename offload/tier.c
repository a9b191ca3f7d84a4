#include "offload/tier.h"

#include "offload/faults.h"
#include "offload/implementations.h"

zero_status tier_open(const struct tier_ops *ops, const struct tier_options *options, struct tier **out_tier,
                      struct zero_error *error) {
    struct tier *tier;
    if (options->faults) atomic_store(&options->faults->armed, false);
    zero_status status = ops->open(options, &tier, error);
    if (!status && options->faults) status = tier_faulty_wrap(tier, options, &tier, error);
    if (status) return status;
    if (options->faults) atomic_store(&options->faults->armed, true);
    *out_tier = tier;
    return ZERO_OK;
}
