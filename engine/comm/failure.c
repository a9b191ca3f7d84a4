#include "engine/comm/failure.h"

void failure_init(struct failure *failure) {
    atomic_init(&failure->raised, false);
    pthread_mutex_init(&failure->mutex, NULL);
    error_clear(&failure->error);
    failure->waits = false;
}

void failure_destroy(struct failure *failure) { pthread_mutex_destroy(&failure->mutex); }

bool failure_raise(struct failure *failure, const struct zero_error *error, bool waits) {
    pthread_mutex_lock(&failure->mutex);
    bool first = !failure_raised(failure);
    if (first) {
        failure->error = *error;
        /* Readers expect a code that is not ZERO_OK. */
        if (error->code == ZERO_OK) failure->error.code = ZERO_E_INTERNAL;
        failure->waits = waits;
        atomic_store_explicit(&failure->raised, true, memory_order_release);
    }
    pthread_mutex_unlock(&failure->mutex);
    return first;
}
