/* Where the device's data is while an engine is parked: in the host's memory or on a drive.
 *
 * The ranges that rest (plan_rest) are one stream of bytes, cut into pieces. In memory a piece has an address, and is copied. On a drive it
 * goes through a slot of staging memory, STORE_SLOTS of them at the same time; its checksum stays in memory, and is verified when the
 * piece comes back.
 *
 * Threads: the host's thread. */
#pragma once

#include "engine/blueprint/blueprint.h"
#include "engine/run/run.h"

enum { STORE_SLOTS = 4 };

struct store {
    struct running *run; /* NULL: the store is not open */
    struct plan_range *range;
    uint32_t ranges;
    uint64_t bytes, piece_bytes; /* of the stream, whole pages; of a piece but the last */
    struct tier *tier;
    struct tier *staging; /* of a drive; else NULL */
    uint64_t *check;      /* of a drive: per piece */
};

/* What a store takes of each tier. */
struct store_need {
    uint64_t bytes[TIERS];
};
struct store_need store_need(const struct store *store, enum tier_kind tier);

/* Lists the ranges. store_close also after a failure. */
zero_status store_prepare(struct store *store, struct running *run, const struct blueprint *blueprint,
                          struct zero_error *error);
/* Takes memory, and space on the drive. */
zero_status store_open(struct store *store, enum tier_kind tier, const struct config *config,
                       struct zero_error *error);
void store_close(struct store *store);

/* Copy the stream from the device's extent to the store, and back. store_give: ZERO_E_IO if a piece came back damaged; what is in
 * `extent` is then void, and the store is as it was. */
zero_status store_take(struct store *store, const uint8_t *extent, struct zero_error *error);
zero_status store_give(struct store *store, uint8_t *extent, struct zero_error *error);
