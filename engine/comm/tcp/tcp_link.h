/* clang-format off */
/* Sends the control channel's messages over the connections of a rendezvous. A message is a length, a tag (secret.h), and
 * then this number of bytes. Two lengths have a special meaning, and no bytes:
 *
 *   0         The rank closes. Every rank sends it to rank 0. When all ranks close, rank 0 sends it to every rank.
 *   GOODBYE   The rank has closed in order, and ends its connections now. The other ranks may not have closed: a call
 *             that they post later fails, because this rank has no part in it.
 *
 * If a connection ends without GOODBYE, its rank died or the network cut the connection. The run then fails after a
 * short time (TCP_PATIENCE_NS); within this time a failed rank may still send its failure message. Messages to a broken
 * connection are lost.
 *
 * Threads: the watch's thread sends and receives; the comm's owner opens and closes. */
/* clang-format on */
#ifndef ZERO_ENGINE_COMM_TCP_TCP_LINK_H
#define ZERO_ENGINE_COMM_TCP_TCP_LINK_H

#include <poll.h>

#include "engine/comm/tcp/rendezvous.h"
#include "engine/comm/watch.h"

enum lane { LANE_CONTROL, LANE_DATA }; /* of the connections between two ranks */

struct tcp_letter {
    uint32_t bytes;
    struct tag tag;
    char message[CONTROL_MESSAGE_BYTES];
};

struct tcp_lane { /* one outgoing and one incoming message, with the number of bytes that are done */
    struct tcp_letter out, in;
    struct seals seals;
    uint32_t out_done, in_done;
    bool closing_sent, deaf; /* deaf: the peer accepts no more bytes */
    uint64_t lost_ns;        /* when the connection ended without GOODBYE; 0: it has not */
    int why;                 /* errno, or 0: the peer closed it */
    atomic_bool left;        /* GOODBYE has come */
};

struct tcp_link {
    struct comm *comm;
    uint32_t rank, size, closing_heard;
    uint64_t key;
    struct tcp_lane *lanes;
    double resume_s;      /* see control_port */
    struct pollfd *polls; /* fd -1: this rank itself, and broken connections */
    atomic_bool leaving, all_left;
};

/* The time between the end of a connection and its report: messages of other ranks may arrive first. */
enum { TCP_PATIENCE_NS = 250000000 };

/* comm->failure must be set. `peers`: one per rank; their sockets are not owned. ZERO_E_MEMORY. */
zero_status tcp_link_open(struct tcp_link *link, struct comm *comm, uint64_t key, const struct lanes *peers);
double tcp_endure(const struct comm *comm, int socket); /* socket_endure, with the comm's limits */
struct watch_link tcp_link_watched(struct tcp_link *link);
/* The rank has closed in order. Any thread. */
bool tcp_link_left(const struct tcp_link *link, uint32_t rank);
/* Sends the rest of each message whose sending has begun; then, if the comm closes `in_order`, GOODBYE. Waits until the other hosts
 * have acknowledged GOODBYE, at most as long as an outage may last. Without this wait, bytes that arrive after the close would make
 * the kernel drop GOODBYE. */
void tcp_link_close(struct tcp_link *link, bool in_order);

#endif
