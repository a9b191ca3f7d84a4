/* The kinds of tiers: plan, budgets and reports use these three. Numbered as zero_tier of engine/zero.h. */
#pragma once

enum tier_kind { TIER_DEVICE, TIER_CPU, TIER_NVME, TIERS };
