#include "engine/plan/interval.h"

#include "engine/base/integer.h"

#include <stdlib.h>
#include <string.h>

zero_status intervals_open(struct intervals *s, uint32_t capacity, uint32_t regions, uint32_t align_bytes,
                           struct zero_error *error) {
    const size_t buffers = (size_t)BUFFER_KINDS * regions;
    *s = (struct intervals){.item = calloc(capacity, sizeof *s->item),
                            .order = calloc(capacity, sizeof *s->order),
                            .latest = malloc(buffers * sizeof *s->latest),
                            .align_bytes = align_bytes};
    if (!s->item || !s->order || !s->latest)
        return error_set(error, ZERO_E_MEMORY, "no memory for the plan's intervals");
    memset(s->latest, 0xff, buffers * sizeof *s->latest);
    return ZERO_OK;
}

void intervals_close(struct intervals *s) {
    free(s->item);
    free(s->order);
    free(s->latest);
}

static uint32_t *latest(const struct intervals *s, struct buffer_ref ref) {
    return &s->latest[BUFFER_KINDS * ref.region + ref.kind];
}

uint32_t interval_begin(struct intervals *s, struct buffer_ref ref, uint32_t known, uint64_t bytes,
                        uint32_t tick) {
    uint32_t *last = latest(s, ref), before = *last;
    if (known != UINT32_MAX) return *last = known;
    uint64_t whole = round_up(bytes, s->align_bytes);
    *last = s->count++;
    s->item[*last] =
        (struct interval){.ref = ref, .bytes = whole, .begin = tick, .same = *last, .open = true};
    if (before == UINT32_MAX) return *last;
    s->item[*last].same = s->item[before].same;
    s->item[before].same = *last;
    return *last;
}

uint32_t interval_open(const struct intervals *s, struct buffer_ref ref) {
    uint32_t last = *latest(s, ref);
    return last != UINT32_MAX && s->item[last].open ? last : UINT32_MAX;
}

void interval_end(struct intervals *s, struct buffer_ref ref, uint32_t tick) {
    uint32_t last = interval_open(s, ref);
    if (last == UINT32_MAX) return;
    struct interval *v = &s->item[last];
    v->end = tick > v->begin ? tick : v->begin + 1;
    v->open = false;
}

/* ---- a search tree: the middle of each part of the list is its root ---- */

static uint32_t later(uint32_t a, uint32_t b) { return a > b ? a : b; }

static uint32_t find_ends(struct intervals *s, uint32_t first, uint32_t end) {
    uint32_t middle = first + (end - first) / 2;
    if (first == end) return 0;
    uint32_t sides = later(find_ends(s, first, middle), find_ends(s, middle + 1, end));
    return s->item[middle].latest_end = later(s->item[middle].end, sides);
}

/* Raises the offset above each placed interval from `first` to `end` with which `v` would overlap in time and bytes. */
static bool raise_above(const struct intervals *s, uint32_t first, uint32_t end, const struct interval *v,
                        uint64_t *offset) {
    uint32_t middle = first + (end - first) / 2;
    const struct interval *m = &s->item[middle];
    if (first == end || m->latest_end <= v->begin) return false;
    bool raised = raise_above(s, first, middle, v, offset);
    if (m->begin >= v->end) return raised;
    if (m->placed && v->begin < m->end && m->offset < *offset + v->bytes && *offset < m->offset + m->bytes)
        *offset = m->offset + m->bytes, raised = true;
    return raise_above(s, middle + 1, end, v, offset) || raised;
}

/* Places the interval, and all others of its buffer, at the lowest offset where none of them has a conflict. `alone`: only this
 * interval counts. Returns the end. */
static uint64_t place(struct intervals *s, uint32_t item, bool alone) {
    uint64_t offset = 0;
    uint32_t k = item;
    bool raised;
    do {
        raised = false;
        do raised |= raise_above(s, 0, s->count, &s->item[k], &offset);
        while (!alone && (k = s->item[k].same) != item);
    } while (raised);
    do s->item[k].offset = offset, s->item[k].placed = true;
    while (!alone && (k = s->item[k].same) != item);
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
static int compare(const void *a, const void *b, void *user) {
    const struct interval *x = *(struct interval *const *)a, *y = *(struct interval *const *)b;
    before_fn *before = *(before_fn *const *)user;
    return before(x, y) ? -1 : before(y, x) ? 1 : (x > y) - (x < y);
}

static uint64_t lay_out(struct intervals *s, before_fn *before, bool alone) {
    uint64_t top = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        s->order[i] = &s->item[i];
        s->item[i].placed = false;
    }
    qsort_r(s->order, s->count, sizeof *s->order, compare, &before);
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->order[i]->placed) continue;
        uint64_t end = place(s, (uint32_t)(s->order[i] - s->item), alone);
        if (top < end) top = end;
    }
    return top;
}

uint64_t intervals_lay_out(struct intervals *s, uint64_t *out_more) {
    const uint32_t count = sizeof orders / sizeof *orders;
    find_ends(s, 0, s->count);
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

static int compare_waste(const void *a, const void *b) {
    const struct apart *x = a, *y = b;
    double p = (double)x->pages / (double)x->room, q = (double)y->pages / (double)y->room;
    return (p < q) - (p > q);
}

uint64_t intervals_most_at_once(struct apart *apart, uint32_t count, uint64_t room) {
    uint64_t pages = 0;
    qsort(apart, count, sizeof *apart, compare_waste);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t part = apart[i].room < room ? apart[i].room : room;
        pages += apart[i].pages * part / apart[i].room;
        room -= part;
    }
    return pages;
}
