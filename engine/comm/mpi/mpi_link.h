/* The process's side of a comm over MPI: its own communicators, which keep its messages apart from the host
 * program's messages. The control channel sends its messages over one of them.
 *
 * A process can initialize MPI only once. If the engine initializes MPI, it finalizes MPI at exit, except while a
 * comm is still open (the host program gave up) or has failed. In these cases finalizing would wait for all other
 * ranks while the control thread still sends heartbeats for this rank. mpirun then correctly reports a process
 * that did not finalize.
 *
 * Threads: the comm's owner opens and closes. MPI must allow MPI_THREAD_MULTIPLE. */
#pragma once

#include "engine/comm/mpi/mpi_library.h"
#include "engine/comm/watch.h"

enum {
    /* Unfinished sends: a failure to at most 16 ranks, a heartbeat, and the calls of some groups. */
    PORT_MESSAGES = 64,
};

struct port_message {
    MPI_Request request; /* libmpi.request_null: free */
    char bytes[CONTROL_MESSAGE_BYTES];
};

struct mpi_link {
    uint32_t rank, size;
    MPI_Comm world;   /* groups are made from it; the ranks meet on it before they close */
    MPI_Comm channel; /* of the control thread */
    uint64_t opening; /* the number of this comm */
    struct port_message *messages;
    MPI_Request meeting;
    bool interrupted; /* while it opened; the other ranks do not know yet */
};

/* True: one process, which needs neither MPI nor its threads. */
bool mpi_link_alone(const struct comm_options *options);

/* Makes blocking MPI calls, which have no deadline; all ranks first meet in a wait that has one. */
zero_status mpi_link_open(struct mpi_link *link, const struct comm_options *options,
                          struct zero_error *error);
struct watch_link mpi_link_watched(struct mpi_link *link);

/* Do not call it after a failure: then the comm does not wait for MPI, and frees neither MPI objects nor messages. All messages to
 * this rank must have arrived before. MPI numbers the messages of a communicator, and gives its context to a later communicator. A
 * message that arrives late has the number of a message of the later communicator, and MPI then never delivers that one. */
void mpi_link_close(struct mpi_link *link, double timeout_s);

const char *mpi_text(int code, char text[MPI_MAX_ERROR_STRING]);
