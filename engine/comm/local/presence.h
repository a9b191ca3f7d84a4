/* clang-format off */
/* Records whether a thread of the host program attends a rank of this process. The thread that made the rank's last
 * call attends the rank, until this thread ends. Another thread may then continue for the rank. Threads that the engine
 * started do not attend a rank: they only continue work that a thread of the host program began.
 *
 *   opened --enter--> attended --its thread ends--> alone --enter--> attended
 *
 * Threads: presence_enter from one thread at a time per rank; presence_alone_ns from any thread. */
/* clang-format on */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

struct presence {
    struct presence *next;            /* the next rank that the same thread attends */
    _Atomic(struct presence **) list; /* that thread's list; NULL: no thread is known */
    _Atomic uint64_t alone_ns;        /* when the attending thread ended; 0: the rank is attended */
};

void presence_open(struct presence *presence);
void presence_close(struct presence *presence);

/* The calling thread attends the rank from now on. */
void presence_enter(struct presence *presence);

static inline uint64_t presence_alone_ns(const struct presence *presence) {
    return atomic_load(&presence->alone_ns);
}
