/* Memory that the host program, or a part of the engine, takes beside the plan. Budgets count it. */
#ifndef ZERO_ENGINE_MODEL_RESERVATIONS_H
#define ZERO_ENGINE_MODEL_RESERVATIONS_H

#include <stdbool.h>

#include "engine/base/error.h"
#include "engine/zero.h"

enum { RESERVATIONS_MAX = 32 };

struct reservations {
    struct reservation {
        zero_tier tier;
        uint64_t bytes;
        char name[64];
        /* Of a scratch (engine/scratch): the drive's bytes of a step, and what the drive has allocated. */
        uint64_t read_bytes, written_bytes, allocated;
        bool scratch;
    } item[RESERVATIONS_MAX];
    uint32_t count;
};

/* A longer name is cut. */
zero_status reservations_add(struct reservations *reservations, zero_tier tier, uint64_t bytes,
                             const char *name, struct zero_error *error);

/* Bytes that the reservations move from and to the drive in a step. */
uint64_t reservations_read_bytes(const struct reservations *reservations);
uint64_t reservations_written_bytes(const struct reservations *reservations);

/* All of one tier; UINT64_MAX if the sum is larger. */
uint64_t reservations_bytes(const struct reservations *reservations, int tier);

#endif
