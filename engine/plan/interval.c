#include "engine/plan/interval.h"

#include <stdlib.h>

zero_status intervals_open(struct intervals *s, uint32_t capacity, struct zero_error *error) {
    *s = (struct intervals){.item = calloc(capacity, sizeof *s->item),
                            .order = calloc(capacity, sizeof *s->order),
                            .capacity = capacity};
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
    s->item[s->count] = (struct interval){.ref = ref,
                                          .bytes = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES,
                                          .begin = tick,
                                          .open = true};
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

/* The lowest offset where the interval overlaps, in time and bytes, with no interval placed before it. The intervals
 * before `place` in the order are placed. */
static uint64_t first_fit(const struct intervals *s, uint32_t place) {
    struct interval v = s->item[s->order[place]];
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t k = 0; k < place; k++) {
            const struct interval *other = &s->item[s->order[k]];
            if (!share_time(&v, other) || !share_bytes(&v, other)) continue;
            v.offset = other->offset + other->bytes;
            moved = true;
        }
    }
    return v.offset;
}

/* Sorts the largest interval first, and equal sizes in the order in which they begin. Small intervals then fill the
 * gaps between large ones, and never block a large one. */
static void sort_by_size(struct intervals *s) {
    for (uint32_t i = 0; i < s->count; i++) {
        uint32_t place = i;
        for (; place > 0 && s->item[s->order[place - 1]].bytes < s->item[i].bytes; place--)
            s->order[place] = s->order[place - 1];
        s->order[place] = i;
    }
}

uint64_t intervals_lay_out(struct intervals *s) {
    uint64_t top = 0;
    sort_by_size(s);
    for (uint32_t i = 0; i < s->count; i++) {
        struct interval *v = &s->item[s->order[i]];
        v->offset = first_fit(s, i);
        if (top < v->offset + v->bytes) top = v->offset + v->bytes;
    }
    return top;
}

bool intervals_share(const struct intervals *s, uint32_t a, uint32_t b) {
    return share_bytes(&s->item[a], &s->item[b]);
}
