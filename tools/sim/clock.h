/* Virtual time: what happens when, in whole nanoseconds. Events at the same time come in an order drawn from the seed,
 * so that nothing may rely on it; after `chaos_events` of them, in the order in which they were made. Owns its queue;
 * one thread. */
#ifndef ZERO_TOOLS_SIM_CLOCK_H
#define ZERO_TOOLS_SIM_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

enum event_kind {
    EVENT_WAKE,     /* something of the rank may be done */
    EVENT_HOST,     /* the rank's host is done computing */
    EVENT_DEADLINE, /* the rank has been silent for too long, */
    EVENT_STUCK     /* or has not gone on */
};

struct event {
    uint64_t at_ns, order;
    uint32_t rank, kind;
};

struct clock {
    uint64_t now_ns;
    uint64_t events;             /* taken so far: the number of the present one */
    uint64_t seed, chaos_events; /* set by the owner */
    uint64_t made;
    struct event *heap;
    uint64_t count, capacity;
    bool failed; /* there was no memory for an event: nothing is right any more */
};

void clock_close(struct clock *clock);

/* `at_ns`: not before now. */
void clock_add(struct clock *clock, uint64_t at_ns, enum event_kind kind, uint32_t rank);

/* The next event, which is then now; false: there is none. */
bool clock_take(struct clock *clock, struct event *out);

/* Whether what happens now is still drawn from the seed. */
static inline bool clock_chaotic(const struct clock *clock) { return clock->events < clock->chaos_events; }

#endif
