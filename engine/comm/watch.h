/* The control channel's thread: it beats and hears (control.c) from open to close, while the rank computes; and the
 * closing, in which nobody leaves while others may still need to hear of it. What carries the messages is the
 * transport's: MPI, or TCP. Threads: the comm's owner; the link is called from the watch's thread, but `meet`. */
#ifndef ZERO_ENGINE_COMM_WATCH_H
#define ZERO_ENGINE_COMM_WATCH_H

#include "engine/comm/control.h"

enum { WATCH_GRACE_NS = 500000000 }; /* for others to hear of a failure before this process ends */

struct watch_link {
    struct control_port port;
    /* Polled by the owner: *out_all once all ranks of the comm have begun to call it. False: it cannot be known. */
    bool (*meet)(void *user, bool *out_all);
};

struct watch {
    struct comm *comm;
    struct watch_link link;
    struct control *control;
    pthread_t thread;
    bool runs;
    atomic_bool stop;
};

/* comm->failure is set. A comm of one rank has no thread. Sets comm->control. */
zero_status watch_start(struct watch *watch, struct comm *comm, const struct watch_link *link);

/* Every rank stays, and beats, until all have come here with the same calls behind them, or something failed; then
 * the thread ends. False: something failed. */
bool watch_stop(struct watch *watch);

void sleep_ns(uint64_t ns);

#endif
