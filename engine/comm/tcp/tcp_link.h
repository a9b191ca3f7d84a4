/* clang-format off */
/* Sends the control channel's messages over the connections of a rendezvous. A message is a length, a tag (secret.h), and
 * then this number of bytes. Two lengths have a special meaning, and no bytes:
 *
 *   0         The rank, and all ranks below it in the tree (rendezvous.h), close: to its parent. When all ranks close, rank 0
 *             tells its children, and these theirs.
 *   GOODBYE   The rank has closed in order, and ends its connections now. The other ranks may not have closed: a call
 *             that they post later fails, because this rank has no part in it.
 *
 * If a connection ends without GOODBYE, its rank died or the network cut the connection. The run then fails after a
 * short time (TCP_PATIENCE_NS); within this time a failed rank may still send its failure message. Messages to a broken
 * connection are lost.
 *
 * The link also answers ranks that connect later (rendezvous_serve).
 *
 * Threads: the watch's thread sends and receives; the comm's owner opens and closes. */
/* clang-format on */
#pragma once

#include <sys/epoll.h>

#include "engine/comm/tcp/rendezvous.h"
#include "engine/comm/watch.h"

enum { TCP_READY = 32 }; /* sockets that one wait reports; the others come next */

/* The connections of one lane. */
struct tcp_set {
    int *socket;    /* by rank; -1: none */
    uint32_t *peer; /* the ranks to which there is or was a connection */
    uint32_t count;
    int epoll;
    struct epoll_event ready[TCP_READY]; /* data.u32: the rank */
};

zero_status tcp_set_open(struct tcp_set *set, uint32_t size);     /* ZERO_E_MEMORY */
bool tcp_set_add(struct tcp_set *set, uint32_t peer, int socket); /* false: the system has no room */
zero_status tcp_raise_no_room(struct comm *comm, uint32_t peer);  /* ZERO_E_MEMORY */
void tcp_set_writes(struct tcp_set *set, uint32_t peer,
                    bool writes);                      /* wait also until the socket takes bytes */
void tcp_set_drop(struct tcp_set *set, uint32_t peer); /* the connection is lost */
/* Waits until sockets are ready: returns their number in `ready`. */
uint32_t tcp_set_wait(struct tcp_set *set, int at_most_ms);
void tcp_set_close(struct tcp_set *set);

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
    uint32_t rank, size, closing_heard, closing_awaited;
    uint64_t key;
    struct lanes *peers;
    struct meeting *meeting; /* of later connections, or NULL */
    uint32_t made;           /* of these connections, the number when the link last looked */
    struct tcp_lane *lanes;
    double resume_s; /* see control_port */
    struct tcp_set set;
    bool told_all;     /* this rank's parent says that all close */
    bool told_waiting; /* the log has a line about a connection that waits */
    atomic_bool leaving, all_left;
};

/* The time between the end of a connection and its report: messages of other ranks may arrive first. */
enum { TCP_PATIENCE_NS = 250000000 };

/* comm->failure must be set. `peers`: one per rank; their sockets are not owned. `meeting`: it may be NULL. ZERO_E_MEMORY. */
zero_status tcp_link_open(struct tcp_link *link, struct comm *comm, uint64_t key, struct lanes *peers,
                          struct meeting *meeting);
double tcp_endure(const struct comm *comm, int socket); /* socket_endure, with the comm's limits */
struct watch_link tcp_link_watched(struct tcp_link *link);
/* The rank has closed in order. Any thread. */
bool tcp_link_left(const struct tcp_link *link, uint32_t rank);
/* Sends the rest of each message whose sending has begun; then, if the comm closes `in_order`, GOODBYE. Waits until the other hosts
 * have acknowledged GOODBYE, at most as long as an outage may last. Without this wait, bytes that arrive after the close would make
 * the kernel drop GOODBYE. */
void tcp_link_close(struct tcp_link *link, bool in_order);
