/* The kinds of tiers: plan, budgets and reports use these three. Numbered as zero_tier of engine/zero.h. */
#ifndef ZERO_OFFLOAD_TIER_KIND_H
#define ZERO_OFFLOAD_TIER_KIND_H

enum tier_kind { TIER_DEVICE, TIER_CPU, TIER_NVME, TIERS };

#endif
