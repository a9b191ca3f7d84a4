/* Memory that the host program, or a part of the engine, takes beside the plan. Budgets count it. */
#ifndef ZERO_ENGINE_MODEL_RESERVATIONS_H
#define ZERO_ENGINE_MODEL_RESERVATIONS_H

#include "engine/base/error.h"
#include "engine/zero.h"

enum { RESERVATIONS_MAX = 32 };

struct reservations {
    struct reservation {
        zero_tier tier;
        uint64_t bytes;
        char name[64];
    } item[RESERVATIONS_MAX];
    uint32_t count;
};

/* A longer name is cut. */
zero_status reservations_add(struct reservations *reservations, zero_tier tier, uint64_t bytes,
                             const char *name, struct zero_error *error);

/* All of one tier; UINT64_MAX if the sum is larger. */
uint64_t reservations_bytes(const struct reservations *reservations, int tier);

#endif
