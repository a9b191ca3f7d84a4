/* Memory that the host program, or a part of the engine, takes beside the plan. Budgets count it. */
#pragma once

#include <stdbool.h>

#include "engine/base/error.h"
#include "engine/zero.h"

enum { RESERVATIONS_MAX = 32, SPARES_MAX = 8 };

struct reservations {
    struct reservation {
        zero_tier tier;
        uint64_t bytes;
        char name[64];
        /* For a scratch (engine/state): the bytes that a step moves, and the bytes that the drive has allocated. */
        uint64_t read_bytes, written_bytes, allocated;
        bool scratch;
        /* For spare memory: the parts that the host program can use. `bytes` are the bytes of the granted parts. */
        uint64_t part_bytes, parts;
        uint64_t *granted; /* the host program's; NULL: no spare memory */
    } item[RESERVATIONS_MAX];
    uint32_t count;
};

/* A longer name is cut. */
zero_status reservations_add(struct reservations *reservations, zero_tier tier, uint64_t bytes,
                             const char *name, struct zero_error *error);

/* Spare memory of the device, of which nothing is granted yet. */
zero_status reservations_add_spare(struct reservations *reservations, uint64_t part_bytes, uint64_t parts,
                                   const char *name, uint64_t *granted, struct zero_error *error);

/* out[i]: how many parts of spare memory i fit into `room` bytes. Spare memory that was declared first gets room
 * first. */
void reservations_fit(const struct reservations *reservations, uint64_t room, uint64_t out[SPARES_MAX]);

/* Grants so many parts, and tells the host program. Returns their bytes. */
uint64_t reservations_grant(struct reservations *reservations, const uint64_t parts[SPARES_MAX]);

/* Of spare memories of one part, what is not granted. */
uint64_t reservations_single_bytes(const struct reservations *reservations);

/* Bytes that the reservations move from and to the drive in a step. */
uint64_t reservations_read_bytes(const struct reservations *reservations);
uint64_t reservations_written_bytes(const struct reservations *reservations);

/* All of one tier; UINT64_MAX if the sum is larger. */
uint64_t reservations_bytes(const struct reservations *reservations, int tier);
