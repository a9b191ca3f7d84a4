#include "engine/comm/transport.h"

#include <stdarg.h>

#include "engine/base/clock.h"

void comm_failure_init(struct comm_failure *failure) {
    atomic_init(&failure->raised, false);
    pthread_mutex_init(&failure->mutex, NULL);
    error_clear(&failure->error);
    failure->waits = false;
}

void comm_failure_destroy(struct comm_failure *failure) { pthread_mutex_destroy(&failure->mutex); }

bool comm_failure_raise(struct comm_failure *failure, const struct zero_error *error, bool waits) {
    pthread_mutex_lock(&failure->mutex);
    bool first = !comm_failure_raised(failure);
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

zero_status comm_raise_error(struct comm *comm, const struct zero_error *error, bool waits) {
    if (comm_failure_raise(comm->failure, error, waits) && comm->ops->announce) comm->ops->announce(comm);
    return error->code;
}

zero_status comm_raise(struct comm *comm, zero_status code, int32_t rank, bool waits, const char *format,
                       ...) {
    struct zero_error error = {.rank = rank};
    va_list args;
    va_start(args, format);
    error_set_v(&error, code, format, args);
    va_end(args);
    return comm_raise_error(comm, &error, waits);
}

zero_status comm_raise_diverged(struct comm *comm, uint32_t ordinal, const struct comm_record *mine,
                                uint32_t peer, const struct comm_record *theirs) {
    char text[RECORD_TEXT_BYTES], peer_text[RECORD_TEXT_BYTES];
    return comm_raise(
        comm, ZERO_E_DIVERGED, (int32_t)peer, false,
        "rank %u posted %s, where rank %u posted %s: all ranks must make the same calls in the same order",
        peer, record_text(theirs, ordinal, peer_text), comm->rank, record_text(mine, ordinal, text));
}

zero_status comm_raise_left(struct comm *comm, uint32_t ordinal, const struct comm_record *record,
                            uint32_t peer) {
    char text[RECORD_TEXT_BYTES];
    return comm_raise(comm, ZERO_E_PEER, (int32_t)peer, false,
                      "rank %u closed its communicator without its part of %s, in which rank %u waited: its "
                      "loop ended earlier than that of the others",
                      peer, record_text(record, ordinal, text), comm->rank);
}

zero_status comm_raise_silent(struct comm *comm, uint32_t peer, double silent_s) {
    return comm_raise(
        comm, ZERO_E_PEER, (int32_t)peer, true,
        "rank %u has been silent for %.1f s (its process died or was stopped, or its host is out of reach)",
        peer, silent_s);
}

zero_status comm_raise_stuck(struct comm *comm, uint32_t ordinal, const struct comm_record *record,
                             uint32_t peer, double waited_s) {
    char text[RECORD_TEXT_BYTES];
    return comm_raise(comm, ZERO_E_PEER, (int32_t)peer, false,
                      "rank %u is alive but did not take its part in %s, for which rank %u waited %.1f s: it "
                      "is stuck, or computes for longer than 10 x timeout_s (%g s)",
                      peer, record_text(record, ordinal, text), comm->rank, waited_s, comm->timeout_s);
}

void comm_raise_interrupted(struct comm *comm) {
    comm_raise(comm, ZERO_E_INTERRUPTED, (int32_t)comm->rank, true, "rank %u was interrupted", comm->rank);
}

void comm_ask_interrupted(struct comm *comm) {
    if (!comm->interrupted || comm_failure_raised(comm->failure)) return;
    uint64_t now_ns = clock_now_ns();
    if (now_ns - comm->asked_ns < COMM_ASK_NS) return;
    comm->asked_ns = now_ns;
    if (comm->interrupted(comm->interrupted_user)) comm_raise_interrupted(comm);
}

uint32_t member_of(const struct comm_group *group, uint32_t rank) {
    uint32_t first = 0, end = group->count;
    while (first < end) {
        uint32_t middle = first + (end - first) / 2;
        if (group->ranks[middle] < rank)
            first = middle + 1;
        else
            end = middle;
    }
    return first < group->count && group->ranks[first] == rank ? first : group->count;
}
