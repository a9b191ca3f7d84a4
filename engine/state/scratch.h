/* Scratch: a host program's data that wait on the drive between two of its uses, such as the activations between forward and
 * backward. A scratch is an array of places of equal size. All scratches of an engine share one nvme tier of their own, beside the
 * one of the executor: its files have no name, also where a shadow keeps the others.
 *
 *   EMPTY --store--> STORING --wait--> STORED --fetch--> FETCHING --wait--> STORED
 *
 * Nothing outlives the process, so there is no tag on the drive: the checksum of a place stays in memory. Data that comes back must
 * match the checksum. So the engine finds a write that the drive lost, or did at another place.
 *
 * Threads: the host's thread alone. Nothing is allocated after scratches_open.  */
#pragma once

#include "engine/base/error.h"
#include "engine/model/reservations.h"
#include "engine/zero.h"
#include "offload/tier.h"

enum { SCRATCHES_MAX = 8 };

struct scratch_place {
    struct tier_work *work; /* NULL: no transfer is in flight */
    void *memory;           /* of that transfer */
    bool fetches, stored;
    uint64_t checksum;
};

struct zero_scratch {
    zero_engine *engine;
    struct scratches *all;
    uint32_t reservation;          /* its index: name and traffic */
    uint64_t first, bytes, places; /* first: offset of place 0 in the extent; bytes of a place */
    struct scratch_place *place;
};

struct scratches { /* zeroed at first */
    struct zero_scratch *item[SCRATCHES_MAX];
    uint32_t count;
    struct reservations *reservations;
    struct tier *tier; /* NULL: not open */
};

/* Declares a scratch, and adds it to the reservations. ZERO_E_ARGUMENT, ZERO_E_MEMORY. */
zero_status scratches_add(struct scratches *scratches, zero_engine *engine, const zero_scratch_needs *needs,
                          struct reservations *reservations, zero_scratch **out, struct zero_error *error);

/* Bytes of the extent, and places of all scratches: the most transfers that are in flight. */
uint64_t scratches_bytes(const struct scratches *scratches);
uint64_t scratches_places(const struct scratches *scratches);

/* Opens the extent; options->bytes and ->requests_max are those above. */
zero_status scratches_open(struct scratches *scratches, const struct tier_ops *ops,
                           const struct tier_options *options, struct zero_error *error);
void scratches_close(struct scratches *scratches); /* waits for the transfers in flight */

/* Start a transfer, after waiting for an earlier one of the place. */
zero_status scratch_store(zero_scratch *scratch, uint64_t place, const void *memory,
                          struct zero_error *error);
zero_status scratch_fetch(zero_scratch *scratch, uint64_t place, void *memory, struct zero_error *error);

/* Waits for the place's transfer. A failure of the transfer is reported once. */
zero_status scratch_wait(zero_scratch *scratch, uint64_t place, struct zero_error *error);
