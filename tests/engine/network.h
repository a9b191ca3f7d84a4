/* A network of the test's own. Each rank is a process in a network namespace, whose interface is a TUN device; the calling process
 * carries packets between these devices, and delays, drops, reorders and cuts as it is told. Every decision about a packet is drawn
 * from the seed, but which packets there are depends on the machine. */
#ifndef ZERO_TESTS_ENGINE_NETWORK_H
#define ZERO_TESTS_ENGINE_NETWORK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "engine/zero.h"

enum { NETWORK_RANKS_MAX = 4 };

struct network {
    uint32_t ranks;
    uint64_t seed;
    double delay_s, jitter_s; /* of each packet; jitter lets later ones come first */
    double loss;              /* the share of packets that are dropped */
    double bytes_per_s;       /* that a rank sends at most; 0: any */
    /* Once `steps` has reached cut_step, for cut_for_s: no packet passes between ranks below cut_rank and the others; with `one_way`,
     * none passes to the ranks below cut_rank. cut_rank 0: never. */
    uint32_t cut_rank, cut_step;
    double cut_for_s;
    bool one_way;
    /* Shared with the ranks. */
    atomic_uint *steps;
    atomic_ullong *cut_ns; /* when the cut began; 0: it has not */
};

/* Runs `body` as each rank, over TCP; it may write to memory that is shared with this process. Returns when all ranks have ended;
 * one that takes more than `most_s` is killed, and its status is that of SIGALRM. False: this system allows no such network
 * (errno). */
bool network_run(const struct network *network, uint32_t most_s,
                 void (*body)(const zero_runtime *runtime, void *user), void *user,
                 int status[NETWORK_RANKS_MAX]);

/* Zeroed memory that children share with this process. */
void *network_share(size_t bytes);

#endif
