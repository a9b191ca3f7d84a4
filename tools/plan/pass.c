#include "tools/plan/pass.h"

#include <stdlib.h>

bool pass_segment(const struct pass_segments *s, uint32_t last, uint32_t *out_first) {
    if (!s->blocks || last < s->first || last + 1 >= s->end || (last + 1 - s->first) % s->blocks)
        return false;
    *out_first = last + 1 - s->blocks;
    return true;
}

/* The lowest trained unit. If no unit is trained: the last unit, whose backward computes the loss. */
static uint32_t lowest(const struct pass_work *work, uint32_t units) {
    uint32_t unit = 0;
    while (unit + 1 < units && !work[unit].trains) unit++;
    return unit;
}

static void add(struct pass *p, uint32_t unit, uint32_t position, bool recomputes, uint64_t compute_ns) {
    p->use[p->uses++] = (struct pass_use){
        .unit = unit, .position = position, .recomputes = recomputes, .compute_ns = compute_ns};
}

/* The input of unit `u` leaves, if those of all segments but the last `stay` do; 0: none does. Those of segments below the `lowest`
 * trained unit are not needed. */
static bool leaves(const struct pass_segments *s, uint32_t stay, uint32_t u, uint32_t lowest) {
    if (!stay || !s->blocks || u < s->first || u >= s->end || (u - s->first) % s->blocks) return false;
    uint32_t segments = (s->end - s->first - 1) / s->blocks + 1 + s->in_use;
    return u + s->blocks > lowest && (u - s->first) / s->blocks + stay < segments;
}

/* Where micro-batches wait, a forward takes its input and leaves its output. A backward takes its input and the gradient of its output,
 * and leaves that of its input; the first one makes the gradient, and the lowest unit's is the last. */
static void cross(struct pass_use *use, const struct pass_segments *s, bool backward, uint32_t lowest) {
    bool embeds = use->unit < s->first, head = use->unit >= s->end;
    if (!s->waits || (head && !backward)) return;
    use->enters = (uint8_t)(!embeds + (backward && !head));
    use->leaves = !backward || use->unit > lowest;
}

zero_status pass_make(const struct pass_work *work, uint32_t units, const struct pass_segments *segments,
                      struct pass *out, struct zero_error *error) {
    struct pass p = {.use = calloc(3 * (size_t)units, sizeof *p.use)};
    if (!p.use) return error_set(error, ZERO_E_MEMORY, "no memory for a pass of %u units", units);
    uint32_t end = lowest(work, units);
    for (uint32_t u = 0; u < units; u++) {
        add(&p, u, u, false, work[u].forward_ns);
        p.use[u].stores = leaves(segments, segments->stay, u + 1, end);
        p.use[u].leaves = leaves(segments, segments->near, u + 1, end);
        cross(&p.use[u], segments, false, end);
    }
    for (uint32_t u = units, first = 0; u-- > end;) {
        uint32_t position = 2 * units - 1 - u;
        bool ends = !segments->in_use && pass_segment(segments, u, &first),
             again = segments->in_use && u >= segments->first && u < segments->end;
        for (uint32_t i = first; ends && i <= u; i++) {
            add(&p, i, position, true, (i < u ? work[i].forward_ns : work[i].recompute_ns) - work[i].kept_ns);
            p.kept_ns += work[i].kept_ns;
            p.use[p.uses - 1].fetches = leaves(segments, segments->stay, i, end);
            p.use[p.uses - 1].enters = leaves(segments, segments->near, i, end);
            cross(&p.use[p.uses - 1], segments, false, end);
        }
        add(&p, u, position, false, work[u].backward_ns + (again ? work[u].recompute_ns : 0));
        p.use[p.uses - 1].fetches = again && leaves(segments, segments->stay, u, end);
        cross(&p.use[p.uses - 1], segments, true, end);
    }
    *out = p;
    return ZERO_OK;
}

void pass_free(struct pass *pass) {
    free(pass->use);
    *pass = (struct pass){0};
}
