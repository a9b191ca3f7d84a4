/* Connects ranks that know only the address of rank 0 (torchrun's MASTER_ADDR and MASTER_PORT).
 *
 *   1. Rank 0 listens at MASTER_ADDR:MASTER_PORT.
 *   2. Every other rank connects to rank 0, and sends its rank and the port on which it listens itself.
 *   3. When all ranks have connected, rank 0 sends every rank a key, and the address of its parent in a tree. Each rank
 *      connects to its parent, receives the list of all addresses from it, and passes the list on.
 *   4. Each rank connects to the neighbours below it, and waits for those above it: two neighbours have RENDEZVOUS_LANES
 *      connections, each for one purpose. Only then it makes its other connections to rank 0.
 *   5. When rank 0 has all connections, so have all ranks, and rank 0 tells them. Then it closes those to ranks that are
 *      not its neighbours. From then on it listens at a port that the kernel chooses, and no longer at MASTER_PORT.
 *
 * Among more than RENDEZVOUS_MESH ranks, two ranks that are no neighbours connect when they first need it: the higher rank
 * calls the lower one (rendezvous_reach).
 *
 * Each connection begins with the handshake of handshake.h. Strangers may connect, too: another program, a port scanner,
 * another job. A rank closes their connections and counts them; the message about a rank that never came tells this
 * count. They cannot end the job, or take a rank's place, unless they know its secret. A job without a secret takes any
 * program for a rank that speaks this protocol.
 *
 * All ranks receive a failure that rank 0 finds. Before step 3 a rank may end, and its process may be started again and take its
 * place. From step 3 on, rank 0 finds a rank that has ended, and every rank tells rank 0 its failure. A rank that has met rank 0
 * tells it an interruption also before step 3.
 *
 * Rank 0 listens at MASTER_ADDR alone, and the other ranks listen at the address from which they reach rank 0. Rank 0 listens at
 * all its addresses if MASTER_ADDR does not say which of them the other ranks use: MASTER_ADDR is a name with several addresses,
 * or not an address of this host, or a name with a loopback address on this host.
 *
 * Threads: any; the calls block, at most until the deadline. */
#pragma once

#include <stdatomic.h>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/comm/tcp/handshake.h"

enum {
    RENDEZVOUS_LANES = 2,
    RENDEZVOUS_MESH = 32 /* up to this number of ranks, every two of them are neighbours */
};

/* Two ranks are neighbours if they stand a power of two apart on the ring of all ranks. */
static inline bool rendezvous_neighbours(uint32_t size, uint32_t a, uint32_t b) {
    uint32_t there = b > a ? b - a : a - b, back = size - there;
    if (a == b) return false;
    return size <= RENDEZVOUS_MESH || !(there & (there - 1)) || !(back & (back - 1));
}
/* In a tree from rank 0 on, whose edges are between neighbours; `rank` is not 0. */
static inline uint32_t rendezvous_parent(uint32_t rank) { return rank & (rank - 1); }

struct rendezvous {
    const char *host; /* of rank 0: a name or an address */
    uint32_t port;
    uint32_t rank, size;
    double timeout_s;
    /* Called in every wait, at least ten times per second: true ends the wait; or NULL. */
    bool (*interrupted)(void *user);
    void *interrupted_user;
    bool by_runtime; /* messages name zero_runtime's fields, and not torchrun's variables */
    struct secret secret;
    const struct log *log; /* NULL: none */
    /* Rank 0, and a rank that does not reach rank 0, log after this time which ranks they wait for; 0: 10 s. */
    double notice_s;
};

struct lanes {
    int socket[RENDEZVOUS_LANES]; /* non-blocking; -1: there is no connection */
    struct seals seals[RENDEZVOUS_LANES];
    atomic_bool made[RENDEZVOUS_LANES]; /* socket and seals no longer change */
};

struct meeting;

/* out_peers[size]; *out_key: equal on all ranks, different for each rendezvous, never 0. On failure no connection stays
 * open. ZERO_E_PEER: a rank never came, cannot be reached, or sent a message that is not valid. ZERO_E_ARGUMENT: two
 * processes have the same rank, the ranks disagree on the number of ranks or on the secret, or the host's name has no
 * address. ZERO_E_IO: the port is in use, the network is down, or there are no more sockets. ZERO_E_MEMORY: no memory.
 * ZERO_E_INTERRUPTED: a rank was interrupted. Ranks that are told of a failure return its code, rank and message. */
zero_status rendezvous(const struct rendezvous *rendezvous, struct lanes *out_peers, uint64_t *out_key,
                       struct meeting **out_meeting, struct zero_error *error);

/* ---- later connections. *out_meeting: NULL where all ranks are neighbours, or where out_meeting is NULL ---- */

/* Takes the connections that other ranks make. Never blocks. One thread at a time. ZERO_E_IO: there are no more sockets, and a connection waits
 * until the next call. */
zero_status rendezvous_serve(struct meeting *meeting, struct zero_error *error);
/* Makes the connections to `rank`, if it is below this one; else it will make them. Blocks until rank `rank`, which serves,
 * answers; at most until `patience` ends. False: errno, EACCES if it has another secret. One
 * thread at a time, at the same time as rendezvous_serve. */
bool rendezvous_reach(struct meeting *meeting, uint32_t rank, struct patience patience);
/* The number of connections made later: it grows after a lane's `made` is set. */
uint32_t rendezvous_made(const struct meeting *meeting);
void rendezvous_end(struct meeting *meeting); /* NULL is allowed */

void rendezvous_close(struct lanes *peers, uint32_t size);
