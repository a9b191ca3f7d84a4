/* What a comm over MPI has in its process: communicators of its own, so that nothing meets the host program's
 * messages, and the control channel's messages over one of them.
 *
 * MPI itself can be initialised once per process: if we do it, it is finalised at exit, unless a comm is still
 * open then (the host program gave up) or failed: finalising would wait for all other ranks, while the control
 * thread goes on to beat for this one. mpirun then reports a process that did not finalise, which is true.
 *
 * Threads: opening and closing, the comm's owner; MPI must allow MPI_THREAD_MULTIPLE. */
#ifndef ZERO_ENGINE_COMM_MPI_LINK_H
#define ZERO_ENGINE_COMM_MPI_LINK_H

#include <mpi.h>

#include "engine/comm/watch.h"

enum {
    PORT_MESSAGES =
        64, /* on their way at once: a failure to all 16 neighbours, a beat, and some groups' calls */
};

struct port_message {
    MPI_Request request; /* MPI_REQUEST_NULL: free */
    char bytes[CONTROL_MESSAGE_BYTES];
};

struct mpi_link {
    uint32_t rank, size;
    MPI_Comm world;   /* groups are made from it; closing meets on it */
    MPI_Comm channel; /* the control thread's */
    uint64_t opening; /* the number of this comm */
    struct port_message *messages;
    MPI_Request meeting;
};

/* MPI's own blocking calls, without a deadline. */
zero_status mpi_link_open(struct mpi_link *link, const struct comm_options *options,
                          struct zero_error *error);
struct watch_link mpi_link_watched(struct mpi_link *link);

/* Not after a failure: then nothing of MPI is waited for or freed, messages included. */
void mpi_link_close(struct mpi_link *link);

const char *mpi_text(int code, char text[MPI_MAX_ERROR_STRING]);

#endif
