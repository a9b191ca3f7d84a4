/* The queue of events: a binary heap. */
#include "tools/sim/clock.h"

#include <stdlib.h>

#include "tools/sim/random.h"

void clock_close(struct clock *c) { free(c->heap); }

static bool before(const struct clock_event *a, const struct clock_event *b) {
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static bool grow(struct clock *c) {
    if (c->count < c->capacity) return true;
    uint64_t capacity = c->capacity ? 2 * c->capacity : 1024;
    struct clock_event *heap = realloc(c->heap, capacity * sizeof *heap);
    if (!heap) return false;
    c->heap = heap;
    c->capacity = capacity;
    return true;
}

void clock_add(struct clock *c, uint64_t at_ns, enum clock_event_kind kind, uint32_t rank) {
    if (!grow(c)) {
        c->failed = true;
        return;
    }
    uint64_t order = c->made++;
    if (clock_chaotic(c)) order = random_draw(c->seed, RANDOM_ORDER, order, 0);
    struct clock_event event = {at_ns, order, rank, kind};
    uint64_t i = c->count++;
    for (; i && before(&event, &c->heap[(i - 1) / 2]); i = (i - 1) / 2) c->heap[i] = c->heap[(i - 1) / 2];
    c->heap[i] = event;
}

bool clock_take(struct clock *c, struct clock_event *out) {
    if (!c->count || c->failed) return false;
    *out = c->heap[0];
    struct clock_event last = c->heap[--c->count];
    uint64_t i = 0;
    for (uint64_t child; (child = 2 * i + 1) < c->count; i = child) {
        if (child + 1 < c->count && before(&c->heap[child + 1], &c->heap[child])) child++;
        if (!before(&c->heap[child], &last)) break;
        c->heap[i] = c->heap[child];
    }
    c->heap[i] = last;
    c->now_ns = out->at_ns;
    c->events++;
    return true;
}
