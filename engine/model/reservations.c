#include "engine/model/reservations.h"

#include <string.h>

zero_status reservations_add(struct reservations *reservations, zero_tier tier, uint64_t bytes,
                             const char *name, struct zero_error *error) {
    if (reservations->count == RESERVATIONS_MAX)
        return error_set(error, ZERO_E_ARGUMENT, "more than %d reservations; combine some of them",
                         RESERVATIONS_MAX);
    struct reservation *r = &reservations->item[reservations->count++];
    *r = (struct reservation){.tier = tier, .bytes = bytes};
    strncpy(r->name, name, sizeof r->name - 1);
    return ZERO_OK;
}

uint64_t reservations_bytes(const struct reservations *reservations, int tier) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < reservations->count; i++)
        if ((int)reservations->item[i].tier == tier &&
            __builtin_add_overflow(bytes, reservations->item[i].bytes, &bytes))
            return UINT64_MAX;
    return bytes;
}

uint64_t reservations_read_bytes(const struct reservations *reservations) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < reservations->count; i++) bytes += reservations->item[i].read_bytes;
    return bytes;
}

uint64_t reservations_written_bytes(const struct reservations *reservations) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < reservations->count; i++) bytes += reservations->item[i].written_bytes;
    return bytes;
}
