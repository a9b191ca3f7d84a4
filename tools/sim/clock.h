/* Virtual time: a queue of events, in whole nanoseconds. Events at the same time come in an order drawn from the seed,
 * so that no code can rely on their order; after the first `chaos_events` events they come in the order of their
 * creation. Owns its queue; one thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum clock_event_kind {
    EVENT_WAKE,     /* the rank may be able to continue */
    EVENT_HOST,     /* the rank's host has finished computing */
    EVENT_DEADLINE, /* the rank has been silent for too long, */
    EVENT_STUCK     /* or has made no progress for too long */
};

struct clock_event {
    uint64_t at_ns, order;
    uint32_t rank, kind;
};

struct clock {
    uint64_t now_ns;
    uint64_t events;             /* taken so far: the number of the current event */
    uint64_t seed, chaos_events; /* set by the owner */
    uint64_t made;
    struct clock_event *heap;
    uint64_t count, capacity;
    bool failed; /* there was no memory for an event: the run is no longer valid */
};

void clock_close(struct clock *clock);

/* `at_ns`: not before now. */
void clock_add(struct clock *clock, uint64_t at_ns, enum clock_event_kind kind, uint32_t rank);

/* Takes the next event and sets the time to it; false: there is none. */
bool clock_take(struct clock *clock, struct clock_event *out);

/* True while the order of events is still drawn from the seed. */
static inline bool clock_chaotic(const struct clock *clock) { return clock->events < clock->chaos_events; }
