/* The table of tiers with one more row. */
#include <stddef.h>

#include "offload/tier.h"

extern const struct tier_ops tier_file;

const struct tier_ops *const tier_table[] = {
    [TIER_DEVICE] = &tier_device, [TIER_CPU] = &tier_cpu, [TIER_NVME] = &tier_nvme, &tier_file, NULL};
