/* What leaves the room (room.c) as uses begin and end. A region that is not in use stays gathered while there is room, so that its
 * next use gathers nothing. When a use needs room, the region that was used longest ago leaves. All decisions follow from the order
 * of calls, so they are the same on all ranks.
 *
 *   parameters: rest --a use--> full --room is needed, or the pass ends--> rest
 *   gradient:   none --a backward--> partial --its last backward ends, or room is needed, or the pass ends--> shard
 *
 * A backward is the last one if each forward before the pass's first backward has had its own backward. A gradient that is reduced
 * before its last backward is reduced in parts, which are added in the shard. */
#include "stages/policy_internal.h"

/* A gradient that rests whole between micro-steps is not reduced before the last of them, and needs no room. */
static bool stays_partial(const struct policy *p, const struct region *r) {
    return !p->last && placement_is(r->grad_between, PARTIAL, PARTIAL);
}

static bool may_leave(const struct policy *p, const struct region *r, enum object object) {
    if (r->open || r->shared || !takes_room(r, object)) return false;
    return object == OBJECT_PARAM ? r->full : r->partial && !stays_partial(p, r);
}

/* p->regions: there is none. */
static uint32_t longest_unused(const struct policy *p, enum object object) {
    uint32_t found = p->regions;
    for (uint32_t i = 0; i < p->regions; i++)
        if (may_leave(p, &p->region[i], object) &&
            (found == p->regions || p->region[i].used < p->region[found].used))
            found = i;
    return found;
}

static void leave(struct policy *p, enum object object, uint16_t region, struct operation_list *out) {
    if (object == OBJECT_GRAD)
        grad_leave(p, region, out);
    else
        param_leave(p, region, !p->evaluating && p->region[region].awaited, out);
}

static bool has(const struct region *r, enum object object) {
    return object == OBJECT_PARAM ? r->full : r->partial;
}

static void make_room(struct policy *p, const struct use *use, enum object object,
                      struct operation_list *out) {
    uint64_t needed = 0;
    for (uint8_t i = 0; i < use->count; i++) {
        const struct region *r = &p->region[use->region[i]];
        if (takes_room(r, object) && !has(r, object)) needed += r->bytes;
    }
    while (p->taken[object] + needed > p->room[object]) {
        uint32_t region = longest_unused(p, object);
        if (region == p->regions) return;
        leave(p, object, (uint16_t)region, out);
    }
}

/* ---- uses ---- */

void eviction_begin(struct policy *p, uint32_t position, struct operation_list *out) {
    const struct use *use = policy_use(p, position);
    bool backward = policy_backward(p, position);
    p->clock++;
    for (uint8_t i = 0; i < use->count; i++) {
        struct region *r = &p->region[use->region[i]];
        r->open++;
        r->used = p->clock;
        if (!p->turned && !p->evaluating) r->awaited++;
    }
    make_room(p, use, OBJECT_PARAM, out);
    if (backward) make_room(p, use, OBJECT_GRAD, out);
}

void eviction_end(struct policy *p, struct operation_list *out) {
    const struct use *use = policy_use(p, p->current);
    bool backward = policy_backward(p, p->current);
    for (uint8_t i = 0; i < use->count; i++) {
        struct region *r = &p->region[use->region[i]];
        r->open--;
        if (!backward) continue;
        if (r->awaited) r->awaited--;
        if (r->partial && !r->open && !r->awaited && !stays_partial(p, r)) grad_leave(p, use->region[i], out);
    }
}

void eviction_finish(struct policy *p) {
    p->turned = false;
    for (uint32_t i = 0; i < p->regions; i++) p->region[i].open = 0;
}
