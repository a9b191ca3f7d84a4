/* The first failure that a rank's process knows of. The thread that finds a failure first writes it (the rank's
 * thread, a peer's thread, or the control thread). Every rank that shares the struct reads it at its next call.
 * Threads: any. */
#ifndef ZERO_ENGINE_COMM_FAILURE_H
#define ZERO_ENGINE_COMM_FAILURE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "engine/base/error.h"

struct failure {
    atomic_bool raised;
    pthread_mutex_t mutex;
    struct zero_error error; /* final once raised */
    bool waits;              /* the message ends with the call in which the reading rank waited */
};

void failure_init(struct failure *failure);
void failure_destroy(struct failure *failure);

/* Keeps the first failure. True if `error` is the first. */
bool failure_raise(struct failure *failure, const struct zero_error *error, bool waits);

static inline bool failure_raised(const struct failure *failure) {
    return atomic_load_explicit(&failure->raised, memory_order_acquire);
}

#endif
