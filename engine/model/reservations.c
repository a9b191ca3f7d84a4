#include "engine/model/reservations.h"

#include <inttypes.h>

#include "engine/base/utf8.h"

zero_status reservations_add(struct reservations *reservations, zero_tier tier, uint64_t bytes,
                             const char *name, struct zero_error *error) {
    if (reservations->count == RESERVATIONS_MAX)
        return error_set(error, ZERO_E_ARGUMENT, "more than %d reservations; combine some of them",
                         RESERVATIONS_MAX);
    struct reservation *r = &reservations->item[reservations->count++];
    *r = (struct reservation){.tier = tier, .bytes = bytes};
    utf8_copy(r->name, sizeof r->name, name);
    return ZERO_OK;
}

/* Spare memory number `number`; NULL past the last. */
static const struct reservation *spare_at(const struct reservations *reservations, uint32_t number) {
    for (uint32_t i = 0; i < reservations->count; i++)
        if (reservations->item[i].granted && number-- == 0) return &reservations->item[i];
    return NULL;
}

zero_status reservations_add_spare(struct reservations *reservations, uint64_t part_bytes, uint64_t parts,
                                   const char *name, uint64_t *granted, struct zero_error *error) {
    uint64_t all;
    if (!part_bytes || __builtin_mul_overflow(part_bytes, parts, &all))
        return error_set(error, ZERO_E_ARGUMENT, "%" PRIu64 " parts of %" PRIu64 " bytes", parts, part_bytes);
    if (spare_at(reservations, SPARES_MAX - 1))
        return error_set(error, ZERO_E_ARGUMENT, "more than %d spare memories; combine some of them",
                         SPARES_MAX);
    TRY(reservations_add(reservations, ZERO_DEVICE, 0, name, error));
    struct reservation *r = &reservations->item[reservations->count - 1];
    r->part_bytes = part_bytes, r->parts = parts, r->granted = granted;
    *granted = 0;
    return ZERO_OK;
}

void reservations_fit(const struct reservations *reservations, uint64_t room, uint64_t out[SPARES_MAX]) {
    for (uint32_t i = 0; i < SPARES_MAX; i++) {
        const struct reservation *r = spare_at(reservations, i);
        uint64_t fit = r ? room / r->part_bytes : 0;
        out[i] = r && fit > r->parts ? r->parts : fit;
        if (r) room -= out[i] * r->part_bytes;
    }
}

uint64_t reservations_single_bytes(const struct reservations *reservations) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < reservations->count; i++) {
        const struct reservation *r = &reservations->item[i];
        uint64_t single = r->granted && r->parts == 1 ? r->part_bytes - r->bytes : 0;
        if (__builtin_add_overflow(bytes, single, &bytes)) return UINT64_MAX;
    }
    return bytes;
}

uint64_t reservations_grant(struct reservations *reservations, const uint64_t parts[SPARES_MAX]) {
    uint64_t bytes = 0;
    for (uint32_t i = 0, spare = 0; i < reservations->count; i++) {
        struct reservation *r = &reservations->item[i];
        if (!r->granted) continue;
        *r->granted = parts[spare++];
        r->bytes = *r->granted * r->part_bytes;
        bytes += r->bytes;
    }
    return bytes;
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
