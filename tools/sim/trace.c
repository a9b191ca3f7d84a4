#include "tools/sim/run.h"

#include <stdlib.h>

enum { EVENTS_MAX = 1 << 20 }; /* of a rank; pages that no event reaches take no memory */

bool sim_trace_open(struct rank *r) {
    const struct sim_setup *setup = r->run->setup;
    if (!setup->trace || r->index >= setup->trace_ranks) return true;
    r->events =
        (struct trace_events){.event = calloc(EVENTS_MAX, sizeof *r->events.event), .capacity = EVENTS_MAX};
    return r->events.event != NULL;
}

uint64_t sim_trace_write(struct run *run) {
    uint64_t missed = 0;
    FILE *file = run->setup->trace;
    if (!file) return 0;
    trace_events_open("zero sim", file);
    for (uint32_t i = 0; i < run->ranks && run->rank[i].events.event; i++) {
        struct trace_events *events = &run->rank[i].events;
        trace_events_write(events, i, 0, file);
        missed += events->missed;
    }
    trace_events_close(file);
    return missed;
}
