#include "engine/plan/interval.h"

#include <stdlib.h>

zero_status intervals_open(struct intervals *s, uint32_t capacity, uint32_t align_bytes,
                           struct zero_error *error) {
    *s = (struct intervals){.item = calloc(capacity, sizeof *s->item),
                            .order = calloc(capacity, sizeof *s->order),
                            .capacity = capacity,
                            .align_bytes = align_bytes};
    return s->item && s->order ? ZERO_OK
                               : error_set(error, ZERO_E_MEMORY, "no memory for the plan's intervals");
}

void intervals_close(struct intervals *s) {
    free(s->item);
    free(s->order);
}

uint32_t interval_begin(struct intervals *s, struct buffer_ref ref, uint32_t known, uint64_t bytes,
                        uint32_t tick) {
    if (known != UINT32_MAX) return known;
    uint64_t whole = (bytes + s->align_bytes - 1) / s->align_bytes * s->align_bytes;
    s->item[s->count] = (struct interval){.ref = ref, .bytes = whole, .begin = tick, .open = true};
    return s->count++;
}

void interval_end(struct intervals *s, struct buffer_ref ref, uint32_t tick) {
    for (uint32_t i = s->count; i-- > 0;) {
        struct interval *v = &s->item[i];
        if (!v->open || v->ref.kind != ref.kind || v->ref.region != ref.region) continue;
        v->end = tick > v->begin ? tick : v->begin + 1;
        v->open = false;
        return;
    }
}

static bool share_time(const struct interval *a, const struct interval *b) {
    return a->begin < b->end && b->begin < a->end;
}

static bool share_bytes(const struct interval *a, const struct interval *b) {
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

static bool same_buffer(const struct interval *a, const struct interval *b) {
    return a->ref.kind == b->ref.kind && a->ref.region == b->ref.region;
}

/* The end of a placed interval with which `v` at this offset would overlap in time and bytes; 0: there is none. */
static uint64_t end_of_conflict(const struct intervals *s, const struct interval *v, uint64_t offset) {
    struct interval at = *v;
    at.offset = offset;
    for (uint32_t k = 0; k < s->count; k++) {
        const struct interval *other = &s->item[k];
        if (other->placed && share_time(&at, other) && share_bytes(&at, other))
            return other->offset + other->bytes;
    }
    return 0;
}

/* The lowest offset where no interval of the buffer has a conflict. `alone`: only this interval counts. */
static uint64_t first_fit(const struct intervals *s, uint32_t item, bool alone) {
    uint64_t offset = 0, end;
    do {
        end = 0;
        for (uint32_t k = 0; k < s->count && !end; k++)
            if (k == item || (!alone && same_buffer(&s->item[k], &s->item[item])))
                end = end_of_conflict(s, &s->item[k], offset);
        if (end) offset = end;
    } while (end);
    return offset;
}

/* Places the interval, and all others of its buffer. Returns the end. */
static uint64_t place(struct intervals *s, uint32_t item, bool alone) {
    uint64_t offset = first_fit(s, item, alone);
    for (uint32_t k = 0; k < s->count; k++) {
        if (k != item && (alone || !same_buffer(&s->item[k], &s->item[item]))) continue;
        s->item[k].offset = offset;
        s->item[k].placed = true;
    }
    return offset + s->item[item].bytes;
}

/* ---- orders of placement ---- */

/* Large intervals first: small ones then fill the gaps between them, and never block a large one. */
static bool is_larger(const struct interval *a, const struct interval *b) { return a->bytes > b->bytes; }
static bool is_larger_or_later(const struct interval *a, const struct interval *b) {
    return a->bytes > b->bytes || (a->bytes == b->bytes && a->begin > b->begin);
}
static bool is_longer(const struct interval *a, const struct interval *b) {
    return a->end - a->begin > b->end - b->begin;
}
static bool takes_more(const struct interval *a, const struct interval *b) {
    return (a->end - a->begin) * a->bytes > (b->end - b->begin) * b->bytes;
}
static bool is_earlier(const struct interval *a, const struct interval *b) { return a->begin < b->begin; }
static bool is_later(const struct interval *a, const struct interval *b) { return a->begin > b->begin; }

typedef bool before_fn(const struct interval *a, const struct interval *b);
static before_fn *const orders[] = {is_larger, is_larger_or_later, takes_more,
                                    is_longer, is_earlier,         is_later};

/* Intervals that are alike stay in the order in which they begin. */
static void sort(struct intervals *s, before_fn *before) {
    for (uint32_t i = 0; i < s->count; i++) {
        uint32_t at = i;
        for (; at > 0 && before(&s->item[i], &s->item[s->order[at - 1]]); at--)
            s->order[at] = s->order[at - 1];
        s->order[at] = i;
    }
}

static uint64_t lay_out(struct intervals *s, before_fn *before, bool alone) {
    uint64_t top = 0;
    sort(s, before);
    for (uint32_t i = 0; i < s->count; i++) s->item[i].placed = false;
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->item[s->order[i]].placed) continue;
        uint64_t end = place(s, s->order[i], alone);
        if (top < end) top = end;
    }
    return top;
}

uint64_t intervals_lay_out(struct intervals *s, uint64_t *out_more) {
    const uint32_t count = sizeof orders / sizeof *orders;
    uint64_t least = lay_out(s, is_larger, true), best = UINT64_MAX;
    uint32_t chosen = 0;
    for (uint32_t k = 0; k < count && best > least; k++) {
        uint64_t top = lay_out(s, orders[k], false);
        if (top >= best) continue;
        best = top, chosen = k;
    }
    lay_out(s, orders[chosen], false);
    *out_more = best > least ? best - least : 0;
    return best;
}

bool intervals_share(const struct intervals *s, uint32_t a, uint32_t b) {
    return share_bytes(&s->item[a], &s->item[b]);
}
