/* The virtual network: when each member of a call gets its part. A rank's calls take turns on its links inside and
 * between nodes. The members of a call end together, unless random times or faults change that. */
#include "tools/sim/run.h"

static bool has_member(const struct sim_meeting *m, uint32_t rank) {
    for (uint32_t i = 0; i < m->members; i++)
        if (m->ranks[i] == rank) return true;
    return false;
}

static struct speeds_call call_of(const struct run *run, const struct sim_meeting *m) {
    const struct speeds *s = &run->setup->speeds;
    bool host = rank_on_host(&run->rank[m->poster], m->source);
    struct speeds_call c = speeds_collective(s, m->members, speeds_nodes(s, m->ranks, m->members), &m->sent,
                                             host && !m->reduces ? m->source_bytes : 0, m->reduces);
    if (run->blueprint.plan.terms->discrete) c.inside_ns += speeds_ns(m->own_bytes, s->device_bytes_per_s);
    uint32_t percent = run->faults.slow_percent;
    if (!sim_fault_on(&run->faults, SIM_SLOW) || m->members == 1 ||
        !has_member(m, run->faults.rank[SIM_SLOW]))
        return c;
    c.inside_ns = c.inside_ns * percent / 100, c.between_ns = c.between_ns * percent / 100;
    return c;
}

/* Returns when the members' links have sent their bytes, from `begin` on, when all these links are free. */
static uint64_t take_links(struct run *run, const struct sim_meeting *m, enum link link, uint64_t begin,
                           uint64_t ns) {
    if (!ns) return begin;
    for (uint32_t i = 0; i < m->members; i++)
        if (run->rank[m->ranks[i]].link_free_ns[link] > begin)
            begin = run->rank[m->ranks[i]].link_free_ns[link];
    for (uint32_t i = 0; i < m->members; i++) run->rank[m->ranks[i]].link_free_ns[link] = begin + ns;
    return begin + ns;
}

/* Returns when a call ends. */
static uint64_t transfer(struct run *run, const struct sim_meeting *m, const struct speeds_call *c) {
    uint64_t now = run->clock.now_ns, inside = take_links(run, m, LINK_INSIDE, now, c->inside_ns);
    uint64_t between = take_links(run, m, LINK_BETWEEN, c->in_turn ? inside : now, c->between_ns);
    return inside > between ? inside : between;
}

/* The time that a fault adds for one member of the `which`th call. */
static uint64_t extra_ns(const struct run *run, uint64_t ns, uint64_t which, uint32_t member) {
    uint64_t draw = random_draw(run->setup->seed, RANDOM_NETWORK, which, member), extra = 0;
    bool late = draw % 8 == 0;
    if (sim_fault_on(&run->faults, SIM_DELAY) && late) extra += random_below(draw, ns + 1);
    if (sim_fault_on(&run->faults, SIM_REORDER)) extra += random_below(random_mix(draw), ns + 1);
    return extra;
}

static void meet(void *user, const struct sim_meeting *m, uint64_t *out_done_at_ns) {
    struct run *run = user;
    uint64_t which = run->meetings++, done_ns = run->clock.now_ns, ns = 0;
    if (!run->setup->chaos_ns) {
        struct speeds_call call = call_of(run, m);
        done_ns = transfer(run, m, &call);
        ns = call.inside_ns + call.between_ns;
    }
    for (uint32_t i = 0; i < m->members; i++) {
        out_done_at_ns[i] = done_ns + (run->setup->chaos_ns ? run_chaos_ns(run, RANDOM_NETWORK, which, i)
                                                            : extra_ns(run, ns, which, i));
        clock_add(&run->clock, out_done_at_ns[i], EVENT_WAKE, m->ranks[i]);
    }
}

void network_open(struct run *run) {
    run->network = (struct sim_network){.user = run, .now_ns = &run->clock.now_ns, .meet = meet};
}
