/* Free order within a bound. The program declares how many units are in use at once. The room is the most bytes that they need:
 * those of this number of the largest units, and of all regions that several units share (tied and held ones), which stay until the
 * pass ends.
 *
 * Gradients count in the room at every stage and on every device, even if they have their own memory. So they are reduced at the
 * same moments everywhere, and have the same bits. What leaves the room: eviction.c. */
#include "stages/policy_internal.h"

bool takes_room(const struct region *r, enum object object) {
    return object == OBJECT_PARAM ? !rests_replicated(r) : !r->frozen;
}

static bool accumulates_whole(const struct policy *p) {
    return p->micro_steps > 1 && placement_is(p->stage->grad_between[p->accumulation], PARTIAL, PARTIAL);
}

static void find_shared(struct policy *p) {
    uint32_t sum = ++p->sums;
    for (uint32_t u = 0; u < p->uses; u++)
        for (uint8_t i = 0; i < p->forward[u].count; i++) {
            struct region *r = &p->region[p->forward[u].region[i]];
            r->shared |= r->counted == sum;
            r->counted = sum;
        }
}

/* The bytes of a use's own regions. */
static uint64_t own_bytes(const struct policy *p, uint32_t use, enum object object) {
    uint64_t bytes = 0;
    for (uint8_t i = 0; i < p->forward[use].count; i++) {
        const struct region *r = &p->region[p->forward[use].region[i]];
        if (takes_room(r, object) && !r->shared) bytes += r->bytes;
    }
    return bytes;
}

/* The bytes of the `count` largest uses, the first of equal ones first. */
static uint64_t largest(const struct policy *p, enum object object, uint32_t count) {
    uint64_t all = 0, last = UINT64_MAX;
    uint32_t chosen = 0;
    for (uint32_t k = 0; k < count && k < p->uses; k++) {
        uint64_t most = 0;
        uint32_t most_use = p->uses;
        for (uint32_t u = 0; u < p->uses; u++) {
            uint64_t bytes = own_bytes(p, u, object);
            bool left = bytes < last || (bytes == last && u > chosen);
            if (left && (most_use == p->uses || bytes > most)) most = bytes, most_use = u;
        }
        all += most;
        last = most, chosen = most_use;
    }
    return all;
}

static uint64_t room_of(const struct policy *p, enum object object) {
    uint64_t bytes = 0;
    if (!p->bound || (object == OBJECT_GRAD && accumulates_whole(p))) return UINT64_MAX;
    if (object == OBJECT_PARAM && p->roomy) return UINT64_MAX;
    for (uint32_t i = 0; i < p->regions; i++)
        if (p->region[i].shared && takes_room(&p->region[i], object)) bytes += p->region[i].bytes;
    return bytes + largest(p, object, p->bound);
}

void room_open(struct policy *p) {
    for (uint32_t i = 0; i < p->regions; i++) {
        p->region[i].shared = false;
        p->region[i].open = p->region[i].awaited = 0;
        p->region[i].used = 0;
    }
    find_shared(p);
    for (int object = 0; object < ROOMS; object++) {
        p->room[object] = room_of(p, (enum object)object);
        p->taken[object] = p->leaving[object] = 0;
    }
    p->clock = 0;
    p->turned = false;
}

void room_take(struct policy *p, enum object object, uint16_t region, struct operation *op) {
    static const enum stream releases[ROOMS] = {
        [OBJECT_PARAM] = STREAM_COMPUTE, [OBJECT_GRAD] = STREAM_REDUCE};
    if (!p->bound) return;
    p->taken[object] += p->region[region].bytes;
    if (p->roomy) return;
    if (p->leaving[object] <= p->room[object] && p->taken[object] <= p->room[object] - p->leaving[object])
        return;
    op->joins |= (uint16_t)(1u << releases[object]);
    p->leaving[object] = 0;
}

void room_give(struct policy *p, enum object object, uint16_t region, bool released) {
    if (!p->bound) return;
    p->taken[object] -= p->region[region].bytes;
    if (released) p->leaving[object] += p->region[region].bytes;
}
