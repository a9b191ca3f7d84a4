/* The virtual network: when each member of a call has its part. A rank's calls take turns on its link; the members of
 * a call are done together, unless faults or chance will it otherwise. */
#include "tools/sim/run.h"

static bool has_member(const struct sim_meeting *m, uint32_t rank) {
    for (uint32_t i = 0; i < m->members; i++)
        if (m->ranks[i] == rank) return true;
    return false;
}

static uint64_t transfer_ns(const struct run *run, const struct sim_meeting *m) {
    uint64_t ns = speeds_collective_ns(&run->setup->speeds, m->ranks, m->members, m->bytes, m->reduces);
    bool slow = sim_fault_on(&run->faults, SIM_SLOW) && m->members > 1 && has_member(m, run->faults.slow);
    return slow ? ns * run->faults.slow_percent / 100 : ns;
}

/* When the links of all members have sent what they have to. */
static uint64_t take_links(struct run *run, const struct sim_meeting *m, uint64_t ns) {
    uint64_t begin = run->clock.now_ns;
    for (uint32_t i = 0; i < m->members; i++)
        if (run->rank[m->ranks[i]].link_free_ns > begin) begin = run->rank[m->ranks[i]].link_free_ns;
    for (uint32_t i = 0; i < m->members; i++) run->rank[m->ranks[i]].link_free_ns = begin + ns;
    return begin + ns;
}

/* What a fault adds for one member of the `which`th call. */
static uint64_t extra_ns(const struct run *run, uint64_t ns, uint64_t which, uint32_t member) {
    uint64_t draw = random_draw(run->setup->seed, RANDOM_NETWORK, which, member), extra = 0;
    bool late = draw % 8 == 0;
    if (sim_fault_on(&run->faults, SIM_DELAY) && late) extra += random_below(draw, ns + 1);
    if (sim_fault_on(&run->faults, SIM_REORDER)) extra += random_below(random_mix(draw), ns + 1);
    return extra;
}

static void meet(void *user, const struct sim_meeting *m, uint64_t *out_done_at_ns) {
    struct run *run = user;
    uint64_t which = run->meetings++, chaos = run->setup->chaos_ns;
    uint64_t ns = chaos ? 0 : transfer_ns(run, m),
             sent_ns = chaos ? run->clock.now_ns : take_links(run, m, ns);
    for (uint32_t i = 0; i < m->members; i++) {
        uint64_t own = chaos ? run_chaos_ns(run, RANDOM_NETWORK, which, i) : extra_ns(run, ns, which, i);
        out_done_at_ns[i] = sent_ns + own;
        clock_add(&run->clock, out_done_at_ns[i], EVENT_WAKE, m->ranks[i]);
    }
}

void network_open(struct run *run) {
    run->network = (struct sim_network){.user = run, .now_ns = &run->clock.now_ns, .meet = meet};
}
