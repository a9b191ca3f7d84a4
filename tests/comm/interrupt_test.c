/* The user interrupts a rank while it waits for another one: all ranks end soon. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/comm/comm.h"
#include "engine/comm/tcp/socket.h"
#include "engine/comm/transport.h"
#include "tests/check.h"

enum { RANKS = 2, TIMEOUT_S = 300, SOON_S = 60 };

struct world {
    const struct comm_ops *transport;
    struct local_world *local;
    uint32_t port;
    bool closing; /* rank 0 is interrupted while it closes, not in a call */
    atomic_bool stop;
    pthread_barrier_t together;
};

struct rank {
    pthread_t thread;
    struct world *world;
    uint32_t index;
    zero_status status;
    struct zero_error error;
    uint64_t closed_ns;
};

static bool ask(void *user) { return atomic_load((atomic_bool *)user); }

static struct comm *open_rank(struct rank *rank, struct comm_group **out_group) {
    static const uint32_t all[RANKS] = {0, 1};
    struct world *world = rank->world;
    struct comm_options options = {.rank = rank->index,
                                   .size = RANKS,
                                   .timeout_s = TIMEOUT_S,
                                   .local = world->local,
                                   .master = "127.0.0.1",
                                   .master_port = world->port,
                                   .interrupted = rank->index == 0 ? ask : NULL,
                                   .interrupted_user = &world->stop};
    struct comm *comm;
    error_clear(&rank->error);
    if (!CHECK_INT(comm_open(world->transport, &options, &comm, &rank->error), ZERO_OK)) exit(1);
    CHECK_INT(comm_group_open(comm, all, RANKS, out_group), ZERO_OK);
    return comm;
}

static void *run(void *user) {
    struct rank *rank = user;
    struct world *world = rank->world;
    struct comm_group *group;
    struct comm *comm = open_rank(rank, &group);
    struct comm_call call = {.kind = COMM_BARRIER, .what = "h.3"};
    pthread_barrier_wait(&world->together);
    /* rank 1 comes late: when rank 0 has given up, and has told it so */
    for (int ms = 0; ms < SOON_S * 1000 && rank->index == 1 && !comm_failure_raised(comm->failure); ms++)
        usleep(1000);
    if (!world->closing || rank->index == 1) rank->status = comm_run(group, &call);
    rank->error = *comm_error(comm);
    comm_group_close(group);
    if (rank->index == 0) atomic_store(&world->stop, true); /* in the closing: at rank 0's first look */
    comm_close(comm);
    rank->closed_ns = clock_now_ns();
    return NULL;
}

static void interrupt(const struct comm_ops *transport, bool closing) {
    struct rank ranks[RANKS] = {0};
    struct world world = {.transport = transport, .closing = closing};
    world.local = local_world_create(RANKS);
    int listener = socket_listen(NULL, 0);
    world.port = socket_port(listener);
    close(listener);
    pthread_barrier_init(&world.together, NULL, RANKS + 1);
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r].world = &world, ranks[r].index = r;
        pthread_create(&ranks[r].thread, NULL, run, &ranks[r]);
    }
    uint64_t since_ns = clock_now_ns();
    pthread_barrier_wait(&world.together);
    usleep(closing ? 0 : 300000); /* rank 0 waits in its call by then */
    if (!closing) atomic_store(&world.stop, true);
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
    CHECK((ranks[0].closed_ns - since_ns) / 1000000000 < SOON_S);
    CHECK_INT(ranks[0].status, closing ? ZERO_OK : ZERO_E_INTERRUPTED);
    CHECK_INT(ranks[1].status, ZERO_E_INTERRUPTED);
    CHECK_CONTAINS(ranks[1].error.message, "rank 0 was interrupted");
    if (!closing)
        CHECK_CONTAINS(ranks[0].error.message,
                       "rank 0 was interrupted while rank 0 waited in barrier of h.3");
    pthread_barrier_destroy(&world.together);
    local_world_destroy(world.local);
}

int main(void) {
    interrupt(&comm_local_ops, false);
    interrupt(&comm_tcp_ops, false);
    interrupt(&comm_tcp_ops, true);
    return check_end();
}
