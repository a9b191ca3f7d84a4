/* Whether a thread stands behind a rank of this process: the one that called for it last, until that thread ends. Another
 * thread may go on where one ended. Threads that the library started stand behind no rank: they only move what one began.
 *
 *   opened --enter, by any of the host's threads--> attended --that thread ends--> alone --enter--> attended
 *
 * Threads: presence_enter from one at a time per rank; presence_alone_ns from any. */
#ifndef ZERO_ENGINE_COMM_PRESENCE_H
#define ZERO_ENGINE_COMM_PRESENCE_H

#include <stdatomic.h>
#include <stdint.h>

struct presence {
    struct presence *next;            /* of the same thread */
    _Atomic(struct presence **) list; /* that thread's; NULL: no thread is known */
    _Atomic uint64_t alone_ns;        /* since when; 0: it is attended */
};

void presence_open(struct presence *presence);
void presence_close(struct presence *presence);

/* The calling thread stands behind the rank from now on. */
void presence_enter(struct presence *presence);

static inline uint64_t presence_alone_ns(const struct presence *presence) {
    return atomic_load(&presence->alone_ns);
}

#endif
