/* The control channel's messages over the connections of a rendezvous: a length, then so many bytes. A length of 0
 * says that a rank closes: all say so to rank 0, and when all have, it says so to all.
 *
 * A peer whose connection breaks is silent from then on, and what is sent to it is lost: the ring (control.h) finds
 * out. Threads: the watch's thread; opening and closing, the comm's owner. */
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
    bool closing_sent;
};

struct tcp_link {
    uint32_t rank, size, closing_heard;
    uint64_t key;
    struct tcp_lane *lanes;
    struct pollfd *polls; /* fd -1: this rank, and broken ones */
    atomic_bool leaving, all_left;
};

/* `sockets`: a rank's own is -1; borrowed. ZERO_E_MEMORY. */
zero_status tcp_link_open(struct tcp_link *link, uint32_t rank, uint32_t size, uint64_t key,
                          const int *sockets);
struct watch_link tcp_link_watched(struct tcp_link *link);
void tcp_link_close(struct tcp_link *link); /* what was begun is sent to its end */

#endif
