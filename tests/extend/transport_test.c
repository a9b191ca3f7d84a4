/* A transport that is one file passes the suite of all transports, with the bits of transport local. */
#include <pthread.h>
#include <stdlib.h>

#include "engine/comm/comm.h"
#include "tests/check.h"
#include "tests/comm/conformance.h"

enum { RANKS_AT_MOST = 4, WHOLE_SUITE = -1 };

extern const struct comm_ops comm_threads_ops;

struct rank {
    pthread_t thread;
    const struct comm_ops *transport;
    struct comm_options options;
    int fault;
    struct conformance conformance;
};

static void *run(void *user) {
    struct rank *rank = user;
    struct zero_error error;
    struct conformance *c = &rank->conformance;
    error_clear(&error);
    if (!CHECK_INT(comm_open(rank->transport, &rank->options, &c->comm, &error), ZERO_OK)) return NULL;
    if (rank->fault == WHOLE_SUITE) {
        conformance_run(c);
        comm_close(c->comm);
    } else {
        conformance_run_fault(c, (enum conformance_fault)rank->fault);
    }
    return NULL;
}

/* Returns a hash of all ranks' results. */
static uint64_t run_all(const struct comm_ops *transport, uint32_t count, int fault, double timeout_s) {
    struct rank ranks[RANKS_AT_MOST] = {0};
    struct local_world *local = local_world_create(count);
    uint64_t hash = 0;
    for (uint32_t r = 0; r < count; r++) {
        ranks[r] = (struct rank){
            .transport = transport,
            .options = {.rank = r, .size = count, .timeout_s = timeout_s, .local = local},
            .fault = fault,
            .conformance = {.pause = conformance_idle, .light = true, .seed = 11, .timeout_s = timeout_s}};
        pthread_create(&ranks[r].thread, NULL, run, &ranks[r]);
    }
    for (uint32_t r = 0; r < count; r++) {
        pthread_join(ranks[r].thread, NULL);
        hash = hash * 31 + ranks[r].conformance.hash;
    }
    for (uint32_t r = 0; r < count; r++)
        free(ranks[r].conformance.kept[0]), free(ranks[r].conformance.kept[1]);
    local_world_destroy(local);
    return hash;
}

int main(void) {
    for (uint32_t ranks = 1; ranks <= RANKS_AT_MOST; ranks++)
        CHECK_INT(run_all(&comm_threads_ops, ranks, WHOLE_SUITE, 30),
                  run_all(&comm_local_ops, ranks, WHOLE_SUITE, 30));
    for (int fault = FAULT_DIVERGED; fault <= FAULT_STUCK; fault++)
        run_all(&comm_threads_ops, 3, fault, fault == FAULT_STUCK ? 0.5 : 2);
    return check_end();
}
