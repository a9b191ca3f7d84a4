/* A rank's side of a rendezvous while it lasts: the connections to it, of ranks and of strangers, until all ranks that connect to
 * this rank have done so. rendezvous.c makes it, and connects to other ranks. */
#pragma once

#include "engine/comm/tcp/rendezvous.h"
#include "engine/comm/tcp/socket.h"

enum {
    WHERE_BYTES = 288,    /* of callers_where */
    CALLERS_MAX = 256,    /* connections that have not yet proved that they are a rank's */
    SILENT_NS = 200000000 /* for a caller without a hello while other callers wait */
};

/* The names of the variables or options that say who this rank is and where the ranks meet, for messages. */
struct names {
    const char *rank, *size, *address, *port;
};

struct caller {
    struct answer answer;
    struct seals seals; /* once it is known */
    bool known;
};

enum await {
    AWAIT_FIRST,    /* the first connection of every rank to rank 0 */
    AWAIT_CHILDREN, /* the first connections of the ranks below this one in the tree */
    AWAIT_ALL       /* all connections of the neighbours; rank 0: of all ranks */
};

struct meeting {
    const struct rendezvous *r;
    struct rendezvous own;
    const struct names *names;
    struct lanes *peers;
    struct place *places; /* where the ranks listen */
    int listener;        /* rank 0: at MASTER_PORT */
    int later_listener;  /* rank 0: takes its place after the rendezvous; or -1 */
    uint16_t later_port; /* of rank 0's later listener */
    uint64_t key;
    atomic_uint made; /* connections after the rendezvous */
    struct patience patience;
    uint64_t called_ns; /* when this rank last began to connect to another one */
    uint64_t notice_ns; /* the time at which this rank logs that it waits; 0: it has */
    uint64_t heard_ns;  /* when rank 0 last looked whether ranks that it has taken failed or ended */
    /* Connections that were closed; of these, the ones that sent a hello and the proof of another secret. */
    uint32_t strangers, impostors;
    bool no_sockets; /* the last try to accept a connection found that this process has no more */
    uint32_t caller_count;
    struct caller callers[CALLERS_MAX];
    struct zero_error *error, later; /* later: of callers after the rendezvous */
};

/* Waits for connections of ranks above this rank. Rank 0 also finds ranks that fail or end meanwhile. */
zero_status callers_await(struct meeting *meeting, enum await what);

/* Hears the callers that are there, and takes ranks. Never blocks. ZERO_E_IO: see meeting->error. */
zero_status callers_serve(struct meeting *meeting);

/* Rank 0, once it has all connections: its port is free for another job. */
void callers_listen_later(struct meeting *meeting);

/* For patience.interrupted: logs once which ranks this rank waits for. */
bool callers_look(void *meeting);

/* `at`: the rank that listens for the awaited connection. */
zero_status callers_interrupted(struct meeting *meeting, const char *awaited, uint32_t at);

/* Where a rank listens, for messages: rank 0 at the address that this rank was given. Returns `text`. */
const char *callers_where(const struct meeting *meeting, uint32_t rank, char text[WHERE_BYTES]);

/* Closes the listener, and connections that are no rank's. */
void callers_close(struct meeting *meeting);
