/* Collectives between ranks: one table, one file per transport.
 *
 * A rank opens one `comm`, makes groups of ranks from it, and posts calls on a group. All members of a group
 * post the same calls in the same order; a call completes later and is polled with comm_test. Buffers of a
 * posted call are borrowed until it is done. Calls of different groups (also with the same members) are
 * independent of each other.
 *
 * Reductions are `ordered` by default: an all-to-all of shares, then the sum in fp32 in rank order, rounded
 * once: the same bits on every transport and the wire bytes of a ring. `native` is the transport's own
 * reduce-scatter.
 *
 * Threads: one thread at a time per comm (the executor's lock). Transports mpi and tcp have one thread more per
 * rank, from open to close: it beats, and keeps MPI moving. Failures are sticky: the first one is kept in
 * comm_error() and every later call returns it. Every wait has a deadline. A silent rank, a broken connection, or
 * data that never comes ends in ZERO_E_PEER, a different call on some rank in ZERO_E_DIVERGED; each names rank and
 * call. Only MPI's own blocking calls have none: they follow a meeting of all ranks that has. A transport frees nothing
 * of calls that never finished, and neither may their caller: after a failure a peer may still read
 * or write their buffers (local: until every rank has closed; mpi: until the process ends). */
#ifndef ZERO_ENGINE_COMM_COMM_H
#define ZERO_ENGINE_COMM_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/dtype.h"
#include "engine/base/error.h"
#include "engine/base/log.h"

enum comm_kind {
    COMM_ALL_GATHER,     /* count: elements of one share; target: members * count; source may be target + me *
                            count */
    COMM_REDUCE_SCATTER, /* count: elements of one share; source: members * count; target may be source + me *
                            count */
    COMM_ALL_REDUCE,     /* count: elements of the whole, any number; source may be target */
    COMM_ALL_TO_ALL,     /* count: elements of one share; source and target: members * count, distinct */
    COMM_BROADCAST,      /* count: elements; from `root` (index in the group); in place in target */
    COMM_BARRIER,
    COMM_KINDS
};

/* Called as parts of a reduction's target become final, in order, in blocks of NORM_BLOCK_ELEMENTS (the last
 * one shorter) counted from the target's start: lets the executor take norms while the block is still in the
 * cache. */
typedef void (*comm_written_fn)(void *user, const void *block, uint64_t first, uint64_t count);

struct comm_call {
    enum comm_kind kind;
    enum dtype dtype;        /* of the source, and of the wire */
    enum dtype target_dtype; /* reductions only: dtype or DTYPE_F32 */
    uint64_t count;
    uint32_t root;
    uint32_t tag; /* part of the fingerprint: the region that the call serves */
    const char
        *what; /* part of the fingerprint and of messages: the unit, "h.3"; copied, 47 bytes of it; or NULL */
    const void *source;
    void *target;
    void *staging; /* comm_staging_bytes() bytes, or NULL where that is 0 */
    bool native;   /* reductions: the transport's own order of additions; all members alike; mpi: fp32 only */
    bool add;      /* reductions with an fp32 target: add the sum to what the target holds */
    comm_written_fn written; /* reduce-scatter, or NULL; called from comm_test or comm_idle */
    void *written_user;
};

/* Rows of bytes that ranks show each other: row 0 is this rank's, row 1 + r becomes member r's. */
static inline struct comm_call comm_rows(void *rows, uint64_t row_bytes, const char *what) {
    return (struct comm_call){.kind = COMM_ALL_GATHER,
                              .dtype = DTYPE_U8,
                              .target_dtype = DTYPE_U8,
                              .count = row_bytes,
                              .what = what,
                              .source = rows,
                              .target = (unsigned char *)rows + row_bytes};
}

struct comm;
struct device;
struct comm_group;
struct comm_work;
struct local_world;
struct sim_world;

enum {
    COMM_CALLS_MAX =
        16, /* of one group in flight, counted from the oldest unfinished: slots are sequence mod 16 */
    COMM_TIMEOUT_S = 60,
};

struct comm_counters { /* since open, per rank; control messages apart */
    uint64_t calls[COMM_KINDS];
    /* Sent by this rank: (members - 1) * count for all-gather, reduce-scatter and all-to-all, and for
     * broadcast at its root; 2 * (members - 1) * ceil(count / members) for all-reduce, half of it in
     * target_dtype. */
    uint64_t elements[COMM_KINDS];
    uint64_t bytes; /* payload sent by this rank */
    uint64_t control_messages, control_bytes;
};

enum comm_transport {
    COMM_SELF,
    COMM_LOCAL,
    COMM_MPI,
    COMM_TCP,
    COMM_NCCL,
    COMM_SIM,
    COMM_MIRROR,
    COMM_TRANSPORTS
};

struct comm_options {
    uint32_t rank, size;
    double
        timeout_s; /* silence of a rank's heartbeat; 10 x that for a rank that beats but does not advance, 12 x
                       * for data that never comes; 0: COMM_TIMEOUT_S. Outages of up to 0.8 x timeout_s pass. */
    struct local_world *local;   /* transport local: the ranks' common world */
    struct sim_world *sim;       /* transport sim: see sim.h */
    enum comm_transport mirrors; /* transport mirror: whose staging it plans; self, local, mpi or tcp */
    void *mpi_comm;              /* transport mpi: points to an MPI_Comm to use, or NULL for MPI_COMM_WORLD */
    struct device *device; /* self, local, nccl: calls' buffers are its memory, or pinned; NULL: the host's */
    const char *master;    /* transport tcp: where rank 0 listens, a name or an address */
    uint32_t master_port;
    struct comm *beside; /* transport nccl: a comm of the same ranks on the host, closed later */
    /* Whether the user wants this rank to end, or NULL. Asked by the thread that opens, waits (comm_run, comm_idle)
     * and closes, about every 100 ms: true fails all ranks with ZERO_E_INTERRUPTED. MPI's own blocking calls
     * cannot ask. */
    bool (*interrupted)(void *user);
    void *interrupted_user;
    struct log log;
};

/* ---- opening ---- */

/* Collective over all ranks. On failure *out_comm is NULL and `error` says why. Transport mpi initialises MPI
 * if nobody did, and then finalises it at exit, unless something failed. */
zero_status comm_open(enum comm_transport transport, const struct comm_options *options,
                      struct comm **out_comm, struct zero_error *error);

/* After the groups are closed. Ranks that still wait for a call that this rank never posted get ZERO_E_PEER.
 * Transports mpi and tcp wait until all ranks close, or half a second after a failure, so that they hear of it. NULL
 * is allowed. */
void comm_close(struct comm *comm);
const char *comm_name(const struct comm *comm);
uint32_t comm_rank(const struct comm *comm);
uint32_t comm_size(const struct comm *comm);

/* Collective over `ranks` (ascending; the caller is one of them); all ranks open their groups in the same
 * order. */
zero_status comm_group_open(struct comm *comm, const uint32_t *ranks, uint32_t count,
                            struct comm_group **out_group);
/* Calls in flight are brought to their end for a second at most, or timeout_s where that is less: their buffers must
 * live until then. Past that the other ranks fail with ZERO_E_PEER. */
void comm_group_close(struct comm_group *group);
uint32_t comm_group_size(const struct comm_group *group);
uint32_t comm_group_index(const struct comm_group *group); /* this rank's index among the members */

/* ---- calls ---- */

/* Scratch that a call of this shape needs (count and dtype matter, pointers do not); planned by the caller.
 */
uint64_t comm_staging_bytes(const struct comm_group *group, const struct comm_call *call);

/* What one of `members` sends for a call of this shape (a broadcast: its root): what the counters add. */
struct comm_sent {
    uint64_t elements, bytes;
};
struct comm_sent comm_call_sent(const struct comm_call *call, uint32_t members);

/* True while COMM_CALLS_MAX calls are in flight: the next post must wait for the oldest one. */
bool comm_group_full(const struct comm_group *group);

/* Starts a call; nothing is allocated. A count of 0 is legal and still matches the other members' call. A
 * post that is refused (a bad argument, a full group) is a failure of this rank and reaches the others: they
 * would wait for it. */
zero_status comm_post(struct comm_group *group, const struct comm_call *call, struct comm_work **out_work);

/* Drives the call; when *out_done is set the work is gone. */
zero_status comm_test(struct comm_work *work, bool *out_done);

/* Posts and tests until done: for set-up, checkpoints and tests. Not with transport sim, whose ranks share a
 * thread. */
zero_status comm_run(struct comm_group *group, const struct comm_call *call);

/* Takes this rank's part in all its calls, then sleeps until something may have moved, `at_most_ns` at most.
 * A loop that tests one call alone must call it: a peer may wait for another call first. */
void comm_idle(struct comm *comm, uint64_t at_most_ns);

/* ---- failures ---- */

/* Makes this rank's failure known to all others: their next call returns ZERO_E_PEER with this message. */
void comm_fail(struct comm *comm, const struct zero_error *error);
/* After a failure: ends what of this comm's calls waits on a GPU for peers that may never come, for until then the
 * memory of that GPU cannot be freed, whoever's it is. Only closing may follow. NULL is allowed. */
void comm_abandon(struct comm *comm);
const struct zero_error *comm_error(const struct comm *comm); /* code ZERO_OK while nothing failed */
const struct zero_error *comm_group_error(const struct comm_group *group); /* of its comm */
const struct zero_error *comm_work_error(const struct comm_work *work);

/* A number that is equal on all ranks while all have posted the same calls: compared at each step's
 * agreement. */
uint64_t comm_fingerprint(const struct comm *comm);

void comm_counters_read(const struct comm *comm, struct comm_counters *out_counters);

/* ---- transport local: ranks are threads of one process ---- */

/* Another thread may go on for a rank whose thread has ended. Until one does, ranks that wait for it get ZERO_E_PEER
 * after timeout_s. */

struct local_world *local_world_create(uint32_t ranks);
void local_world_destroy(struct local_world *world); /* after every rank has closed its comm */

#endif
