/* The behavior that every transport must have. Each rank of a world runs the suite on its own comm, in the same order
 * on all ranks. The results are compared bit for bit with scalar code that is written again here, independent of
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
    /* The device's memory, one piece of CONFORMANCE_DEVICE_BYTES. Freeing pieces between calls would wait for the whole
     * GPU, also for other ranks' collectives. The piece is used from its start again when no call uses it. */
    char *memory;
    uint64_t memory_used;
    uint32_t memory_users;
    void *kept[2]; /* out of a fault's run: buffers to be freed when every rank has ended */
    uint64_t hash; /* out: of all results: the same on every transport */
    uint64_t alone; /* calls that needed no other rank */
};

void conformance_run(struct conformance *conformance);

/* Runs in which one rank does something wrong on purpose; each other rank checks the failure that it receives. Needs 2
 * ranks. */
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
