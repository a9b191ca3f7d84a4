/* How ranks that nothing but an address connects find each other, as torchrun's variables describe it: rank 0
 * listens at MASTER_ADDR:MASTER_PORT, every other rank calls there and says who it is and where it listens itself;
 * when all have come, rank 0 tells all of them the whole list and a key, and each rank calls those below it. In the
 * end every two ranks have LANES connections, each for one purpose.
 *
 * Who calls and is none of the ranks (another program, a port scanner, another job) is hung up on, and counted in the
 * sentence with which a rank that never comes is reported. All ranks hear of a failure that rank 0 finds. The first
 * call carries no secret, as torchrun's own store has none: run this in a network that you trust.
 *
 * Threads: any; blocking, up to the deadline. */
#ifndef ZERO_ENGINE_COMM_RENDEZVOUS_H
#define ZERO_ENGINE_COMM_RENDEZVOUS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

enum { RENDEZVOUS_LANES = 2 };

struct rendezvous {
    const char *host; /* of rank 0: a name or an address */
    uint32_t port;
    uint32_t rank, size;
    double timeout_s;
    bool (*interrupted)(
        void *user); /* asked in every wait, ten times a second at least: true ends it; or NULL */
    void *interrupted_user;
};

struct lanes {
    int socket[RENDEZVOUS_LANES]; /* non-blocking; -1: this rank itself */
};

/* out_peers[size]; *out_key: equal on all ranks, another one each time, never 0. ZERO_E_PEER: a rank never came, or a
 * rank said something that does not fit; ZERO_E_ARGUMENT: two ranks have one number, or another size; ZERO_E_IO: the
 * port is in use, or the network is down; ZERO_E_INTERRUPTED: on this rank, or on rank 0. On failure nothing stays open. */
zero_status rendezvous(const struct rendezvous *rendezvous, struct lanes *out_peers, uint64_t *out_key,
                       struct zero_error *error);

void rendezvous_close(struct lanes *peers, uint32_t size);

#endif
