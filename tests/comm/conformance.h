/* What every transport must do, run by each rank of a world on its own comm, in the same order on all of
 * them. Results are compared bit for bit with scalar code that is written here a second time, apart from
 * engine/comm. */
#ifndef ZERO_TESTS_COMM_CONFORMANCE_H
#define ZERO_TESTS_COMM_CONFORMANCE_H

#include "engine/comm/comm.h"

enum { CONFORMANCE_DEVICE_BYTES = 1 << 20 };

struct conformance {
    struct comm *comm;
    /* Lets time pass between tests: comm_idle, or the turn of another virtual rank. */
    void (*pause)(struct conformance *conformance);
    void *user;
    uint64_t seed; /* of this rank's own order of testing */
    double timeout_s;
    bool light; /* smaller calls, for devices that are slow stand-ins */
    struct device *device; /* the calls' buffers are its memory; NULL: the host's */
    /* That memory, one piece of CONFORMANCE_DEVICE_BYTES: to free some between calls would wait for the whole GPU,
     * other ranks' collectives included. Begun anew when nothing of it is in use. */
    char *memory;
    uint64_t memory_used;
    uint32_t memory_users;
    void *kept[2]; /* out of a fault's run: buffers to be freed when every rank has ended */
    uint64_t hash; /* out: of all results: the same on every transport */
};

void conformance_run(struct conformance *conformance);

/* Ranks of which one does something wrong on purpose; each checks what it is told. 2 ranks at least. */
enum conformance_fault {
    FAULT_DIVERGED, /* the last rank posts another call */
    FAULT_FAILED,   /* the last rank fails (comm_fail) while the others wait */
    FAULT_CLOSED,   /* the last rank closes its comm while the others wait */
    FAULT_STUCK,    /* the last rank posts nothing until the others gave up: set a short timeout */
    FAULT_UNOPENED, /* the last rank does not open a group that the others open: short timeout, transport mpi only */
    FAULT_KILLED,   /* the last rank's process is killed, transports mpi and tcp only */
    FAULT_STOPPED,  /* the last rank's process is stopped, transports mpi and tcp only */
    FAULT_EXITED, /* the last rank's process calls exit() with its comm open, transports mpi (mpirun ends
                       all) and tcp */
    FAULT_UNCLOSED, /* the last rank does not close while the others do: short timeout, transports mpi and tcp only */
    FAULTS
};
extern const char *const conformance_fault_names[FAULTS];

/* Closes the comm. */
void conformance_run_fault(struct conformance *conformance, enum conformance_fault fault);

void conformance_idle(struct conformance *conformance); /* a pause that calls comm_idle */

#endif
