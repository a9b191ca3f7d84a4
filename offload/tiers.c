/* All tiers. A new tier is one file, and one row here. A program that defines this table itself is linked with its own. */
#include <stddef.h>

#include "offload/tier.h"

const struct tier_ops *const tier_table[] = {
    [TIER_DEVICE] = &tier_device, [TIER_CPU] = &tier_cpu, [TIER_NVME] = &tier_nvme, NULL};
