#include "engine/state/scratch.h"

#include <inttypes.h>
#include <stdlib.h>

#include "engine/base/limits.h"
#include "kernels/checksum.h"

enum { WAIT_NS = 100 * 1000 * 1000 };

static struct reservation *reservation_of(const zero_scratch *s) {
    return &s->all->reservations->item[s->reservation];
}

/* ---- declaring ---- */

static zero_status check_needs(const zero_scratch_needs *n, struct zero_error *error) {
    uint64_t bytes;
    if (!n->name || !n->places || !n->place_bytes || n->place_bytes % CHUNK_ALIGN_BYTES)
        return error_set(error, ZERO_E_ARGUMENT,
                         "scratch \"%s\": %" PRIu64 " places of %" PRIu64
                         " bytes: give it a name, at least one place, and a multiple of %d bytes for each",
                         n->name ? n->name : "", n->places, n->place_bytes, CHUNK_ALIGN_BYTES);
    if (n->places > UINT32_MAX || __builtin_mul_overflow(n->places, n->place_bytes, &bytes) ||
        bytes > INT64_MAX)
        return error_set(error, ZERO_E_ARGUMENT,
                         "scratch \"%s\": %" PRIu64 " places of %" PRIu64
                         " bytes are more than any drive has",
                         n->name, n->places, n->place_bytes);
    return ZERO_OK;
}

static zero_scratch *make(const zero_scratch_needs *n) {
    zero_scratch *s = calloc(1, sizeof *s);
    if (s) s->place = calloc(n->places, sizeof *s->place);
    if (s && s->place) return s;
    free(s);
    return NULL;
}

zero_status scratches_add(struct scratches *all, zero_engine *engine, const zero_scratch_needs *n,
                          struct reservations *reservations, zero_scratch **out, struct zero_error *error) {
    TRY(check_needs(n, error));
    if (all->count == SCRATCHES_MAX)
        return error_set(error, ZERO_E_ARGUMENT,
                         "scratch \"%s\": an engine has at most %d; combine some of them", n->name,
                         SCRATCHES_MAX);
    uint64_t bytes = n->places * n->place_bytes;
    TRY(reservations_add(reservations, ZERO_NVME, bytes, n->name, error));
    zero_scratch *s = make(n);
    if (!s) {
        reservations->count--;
        return error_set(error, ZERO_E_MEMORY, "scratch \"%s\": no memory for a table of %" PRIu64 " places",
                         n->name, n->places);
    }
    all->reservations = reservations;
    s->engine = engine;
    s->all = all;
    s->reservation = reservations->count - 1;
    s->first = scratches_bytes(all);
    s->bytes = n->place_bytes;
    s->places = n->places;
    struct reservation *r = reservation_of(s);
    r->scratch = true;
    r->read_bytes = n->step_fetches * n->place_bytes;
    r->written_bytes = n->step_stores * n->place_bytes;
    all->item[all->count++] = s;
    *out = s;
    return ZERO_OK;
}

uint64_t scratches_bytes(const struct scratches *all) {
    if (!all->count) return 0;
    const zero_scratch *last = all->item[all->count - 1];
    return last->first + last->places * last->bytes;
}

uint64_t scratches_places(const struct scratches *all) {
    uint64_t places = 0;
    for (uint32_t i = 0; i < all->count; i++) places += all->item[i]->places;
    return places;
}

/* ---- open and close ---- */

zero_status scratches_open(struct scratches *all, const struct tier_ops *ops,
                           const struct tier_options *options, struct zero_error *error) {
    if (!all->count) return ZERO_OK;
    zero_status status = tier_open(ops, options, &all->tier, error);
    for (uint32_t i = 0; i < all->count && !status; i++) {
        const zero_scratch *s = all->item[i];
        uint64_t bytes = s->places * s->bytes, allocated = all->tier->allocated;
        uint64_t left = allocated > s->first ? allocated - s->first : 0;
        reservation_of(s)->allocated = left < bytes ? left : bytes;
    }
    return status;
}

void scratches_close(struct scratches *all) {
    if (all->tier) all->tier->ops->close(all->tier);
    for (uint32_t i = 0; i < all->count; i++) {
        free(all->item[i]->place);
        free(all->item[i]);
    }
    *all = (struct scratches){0};
}

/* ---- transfers ---- */

static zero_status start(zero_scratch *s, uint64_t place, void *memory, bool fetches,
                         struct zero_error *error) {
    struct scratch_place *p = &s->place[place];
    struct tier *tier = s->all->tier;
    struct tier_request request = {
        .write = !fetches, .offset = s->first + place * s->bytes, .bytes = s->bytes, .memory = memory};
    p->fetches = fetches;
    p->memory = memory;
    return tier->ops->post(tier, &request, &p->work, error);
}

zero_status scratch_store(zero_scratch *s, uint64_t place, const void *memory, struct zero_error *error) {
    TRY(scratch_wait(s, place, error));
    s->place[place].checksum = checksum(memory, s->bytes);
    s->place[place].stored = true;
    return start(s, place, (void *)(uintptr_t)memory, false, error);
}

zero_status scratch_fetch(zero_scratch *s, uint64_t place, void *memory, struct zero_error *error) {
    zero_status status = scratch_wait(s, place, error);
    return status ? status : start(s, place, memory, true, error);
}

static zero_status verify(const zero_scratch *s, uint64_t place, struct zero_error *error) {
    const struct scratch_place *p = &s->place[place];
    const struct tier *tier = s->all->tier;
    uint64_t found = checksum(p->memory, s->bytes);
    char where[512];
    if (found == p->checksum) return ZERO_OK;
    tier->ops->where(tier, s->first + place * s->bytes, where, sizeof where);
    return error_set(error, ZERO_E_IO,
                     "%s, place %" PRIu64 ", came back damaged from %s: expected checksum %016" PRIx64
                     ", found %016" PRIx64 "; do not trust this drive, and go on from the last checkpoint",
                     reservation_of(s)->name, place, where, p->checksum, found);
}

zero_status scratch_wait(zero_scratch *s, uint64_t place, struct zero_error *error) {
    struct scratch_place *p = &s->place[place];
    struct tier *tier = s->all->tier;
    struct zero_error why = ERROR_NONE;
    zero_status status = ZERO_OK;
    if (!p->work) return ZERO_OK;
    for (bool done = false; !done;) {
        status = tier->ops->test(tier, p->work, &done, &why);
        if (!done) tier->ops->wait(tier, WAIT_NS);
    }
    p->work = NULL;
    if (!status) return p->fetches ? verify(s, place, error) : ZERO_OK;
    p->stored = false;
    return error_set(error, why.code, "%s, place %" PRIu64 ": %s", reservation_of(s)->name, place,
                     why.message);
}
