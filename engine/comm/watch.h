/* The control channel's thread, and the closing of a comm. From open to close the thread sends and receives control
 * messages (control.c) while the rank computes. In the closing, a rank waits for those that may still need its messages:
 * over MPI until all close, over TCP for at most WATCH_LEAVE_NS. The transport (MPI or TCP) carries the messages.
 * Threads: the comm's owner calls these functions and `meet`; the watch's thread calls all other functions of the link. */
#pragma once

#include "engine/comm/control.h"

enum {
    WATCH_GRACE_NS = 500000000,  /* time for other ranks to receive a failure before this process ends */
    WATCH_LEAVE_NS = 1000000000, /* time for other ranks to close, too */
};

struct watch_link {
    struct control_port port;
    /* The owner polls it. *out_all: all ranks of the comm have begun to call it. False: the link cannot know. It comes after
     * control_left. */
    bool (*meet)(void *user, bool *out_all);
    /* The link tells the other ranks that this rank left in order, and no late message can harm a later link. */
    bool may_leave;
};

struct watch {
    struct comm *comm;
    struct watch_link link;
    struct control *control;
    pthread_t thread;
    bool runs;
    atomic_bool stop;
};

/* comm->failure must be set. Sets comm->control. A comm of one rank has no thread. */
zero_status watch_start(struct watch *watch, struct comm *comm, const struct watch_link *link);

/* Ends the thread, after a wait in which the thread still sends heartbeats. The wait ends when all ranks have called watch_stop
 * after the same calls and no message is on its way to this rank; at a failure; or when a link that may leave has waited long
 * enough. False: there was a failure. */
bool watch_stop(struct watch *watch);

void sleep_ns(uint64_t ns);
