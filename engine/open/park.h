/* A parked engine: between two steps, what rests in the device's memory is in a store, and the device's memory is given back.
 *
 *   whole --park_out--> parked --park_in--> whole
 *
 * On the way out and in, both memories are there until all ranks have succeeded: if one rank fails, all ranks refuse, and the
 * engine is unchanged. Where the row of messages is on the device (the host itself), a small extent with that row alone takes the
 * place of the device's tier, because ranks still exchange messages.
 *
 * Threads: the host's thread, between steps, with nothing in flight.   */
#pragma once

#include "engine/open/host.h"
#include "engine/open/store.h"
#include "engine/state/state.h"

struct park {
    struct running *run;
    struct state *state;
    const struct blueprint *blueprint;
    const struct host *host;
    bool parked;
    enum tier_kind tier; /* of the store */
    struct store store;
    uint64_t read_bytes, written_bytes; /* of drives, by earlier parks */
};

/* Refuses a tier to which an engine of this configuration cannot be parked. Local. */
zero_status park_check(const struct park *park, zero_tier tier);

/* Collective. A failure is not sticky. */
zero_status park_out(struct park *park, enum tier_kind tier);
zero_status park_in(struct park *park);
void park_close(struct park *park);

/* The planned bytes of a row of the plan, and of a tier's rows and alignment: those of the plan, or while parked what is left of them. */
uint64_t park_row_bytes(const struct park *park, enum memory_row row);
uint64_t park_tier_bytes(const struct park *park, enum tier_kind tier);

/* The offset of a row of the plan in its tier's extent. */
uint64_t park_row_offset(const struct park *park, enum memory_row row);

/* The rows of the store, index 0, 1, ... False: past the last. */
bool park_store_row(const struct park *park, uint32_t index, zero_memory_row *out);
