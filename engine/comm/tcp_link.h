/* The control channel's messages over the connections of a rendezvous: a length, then so many bytes. Two lengths are
 * words of their own:
 *
 *     0           a rank closes: all say so to rank 0, and when all have, it says so to all
 *     GOODBYE     this rank has closed in order, and its connections end now
 *
 * A connection that ends without a goodbye means that its rank died, or that the network cut it: the run fails, a
 * moment later, in which a rank that failed may still say why. What is sent to a broken connection is lost.
 *
 * Threads: the watch's thread; opening and closing, the comm's owner. */
#ifndef ZERO_ENGINE_COMM_TCP_LINK_H
#define ZERO_ENGINE_COMM_TCP_LINK_H

#include <poll.h>

#include "engine/comm/watch.h"

struct tcp_letter {
    uint32_t bytes;
    char message[CONTROL_MESSAGE_BYTES];
};

struct tcp_lane { /* one letter out and one in, each as far as it got */
    struct tcp_letter out, in;
    uint32_t out_done, in_done;
    bool closing_sent, deaf; /* deaf: it takes nothing more */
    uint64_t lost_ns;        /* its connection ended, without a goodbye; 0: it has not */
    int why;                 /* errno, or 0: closed */
};

struct tcp_link {
    struct comm *comm;
    uint32_t rank, size, closing_heard;
    uint64_t key;
    struct tcp_lane *lanes;
    double resume_s;      /* see control_port */
    struct pollfd *polls; /* fd -1: this rank, and broken ones */
    atomic_bool leaving, all_left;
};

/* For others' words to arrive, before a connection that broke is reported. */
enum { TCP_PATIENCE_NS = 250000000 };

/* `comm` has its failure; `sockets`: a rank's own is -1; borrowed. ZERO_E_MEMORY. */
zero_status tcp_link_open(struct tcp_link *link, struct comm *comm, uint64_t key, const int *sockets);
double tcp_endure(const struct comm *comm, int socket); /* socket_endure, with the comm's limits */
struct watch_link tcp_link_watched(struct tcp_link *link);
/* What was begun is sent to its end; then, if the comm closes `in_order`, the goodbye. */
void tcp_link_close(struct tcp_link *link, bool in_order);

#endif
