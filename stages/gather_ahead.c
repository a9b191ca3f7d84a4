/* How far the policy gathers ahead, and which units it keeps whole: the bounds on elements that are gathered at once. */
#include "stages/policy_internal.h"

bool policy_gathers(const struct policy *p, const struct use *use) {
    for (uint8_t i = 0; i < use->count; i++)
        if (!rests_replicated(&p->region[use->region[i]])) return true;
    return false;
}

static uint64_t add_use(struct policy *p, const struct use *use, uint32_t sum) {
    uint64_t elements = 0;
    for (uint8_t i = 0; i < use->count; i++) {
        struct region *r = &p->region[use->region[i]];
        if (!rests_replicated(r) && r->counted != sum) elements += r->elements;
        r->counted = sum;
    }
    return elements;
}

/* The elements of the forward uses in two runs. Counts each region once, and no region of `but` (may be NULL). */
static uint64_t elements_of(struct policy *p, struct run a, struct run b, const struct use *but) {
    uint64_t elements = 0;
    uint32_t sum = ++p->sums;
    if (but) add_use(p, but, sum);
    for (uint32_t q = a.first; q <= a.last; q++) elements += add_use(p, &p->forward[q], sum);
    for (uint32_t q = b.first; q <= b.last; q++) elements += add_use(p, &p->forward[q], sum);
    return elements;
}

static const struct run nothing = {1, 0};

bool policy_fits(struct policy *p, struct run a, struct run b, const struct use *in_use) {
    if (p->ahead_max == UINT64_MAX && p->live_max == UINT64_MAX) return true;
    return elements_of(p, a, b, in_use) <= p->ahead_max && elements_of(p, a, b, NULL) <= p->live_max;
}

static uint32_t forward_of(const struct policy *p, uint32_t position) {
    return position < p->uses ? position : 2 * p->uses - 1 - position;
}

static bool keeps(const struct policy *p) {
    return placement_is(p->stage->param_between, REPLICATE, REPLICATE) &&
           !placement_is(p->stage->param_rest, REPLICATE, REPLICATE);
}

/* `gathered` ends at the end of a segment. True if it leaves room for each forward of that segment before it. */
static bool leaves_room(struct policy *p, struct run gathered) {
    uint32_t first = gathered.last - p->forward[gathered.last].segment_offset;
    for (uint32_t u = first; u < gathered.first; u++)
        if (!policy_fits(p, gathered, (struct run){u, u}, &p->forward[u])) return false;
    return true;
}

static bool ends_segment(const struct policy *p, uint32_t use) {
    return use + 1 == p->uses || p->forward[use + 1].segment_offset == 0;
}

/* The same for every segment that ends inside the run: when that segment is recomputed, the part of the run up to its
 * end is still gathered. */
static bool leaves_room_again(struct policy *p, struct run gathered) {
    for (uint32_t u = gathered.first; u <= gathered.last; u++)
        if (ends_segment(p, u) && !leaves_room(p, (struct run){gathered.first, u})) return false;
    return true;
}

/* Keeps the last units whole while their total size fits in live_max: backward needs these units first. Then keeps
 * fewer, until each segment with kept units leaves room for those of its units that are not kept. */
void policy_find_kept(struct policy *p) {
    p->kept_from = p->uses;
    uint64_t elements = 0;
    uint32_t sum = ++p->sums;
    while (p->kept_from > 0 && keeps(p)) {
        elements += add_use(p, &p->forward[p->kept_from - 1], sum);
        if (elements > p->live_max) break;
        p->kept_from--;
    }
    while (p->kept_from < p->uses && !leaves_room_again(p, (struct run){p->kept_from, p->uses - 1}))
        p->kept_from++;
}

/* True if the use at `position` may be gathered while the use at `cursor` is in use. The gathered units are then a
 * run of forward uses between the two; if the cursor is in forward and `position` in backward, the run extends to the
 * last forward. (Kept units fit in live_max by themselves; a backward that comes after them has them in its run.) A
 * unit that is gathered for its backward must also leave room for the forwards that are recomputed before that
 * backward. */
static bool has_room(struct policy *p, uint32_t cursor, uint32_t position) {
    uint32_t here = forward_of(p, cursor), there = forward_of(p, position);
    uint32_t first = here < there ? here : there;
    uint32_t last = policy_backward(p, cursor) ? here : policy_backward(p, position) ? p->uses - 1 : there;
    if (!policy_fits(p, (struct run){first, last}, nothing, policy_use(p, cursor))) return false;
    return !policy_backward(p, position) || last == 0 || leaves_room_again(p, (struct run){there, last - 1});
}

uint32_t policy_reach(struct policy *p, uint32_t cursor) {
    if (p->eager) return cursor + 1 < p->positions ? p->positions - 1 : cursor; /* no use gathers */
    uint32_t left = policy_backward(p, cursor) ? p->backward_depth : p->depth, q = cursor;
    for (; q + 1 < p->positions; q++)
        if (policy_gathers(p, policy_use(p, q + 1)) && (left-- == 0 || !has_room(p, cursor, q + 1))) break;
    return q;
}
