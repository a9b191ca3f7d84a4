/* Collectives between ranks: one table, one file per transport.
 *
 * A rank opens one `comm`, makes groups of ranks from it, and posts calls on a group. All members of a group
 * post the same calls in the same order. A call completes later; the rank polls it with comm_test. A posted
 * call borrows its buffers until it is done. Calls of different groups are independent of each other, even
 * where the groups have the same members, but for transports where one order holds over all groups (comm_one_order).
 *
 * Reductions are `ordered` by default: the members of each node are summed in rank order, then the nodes in their order, all in
 * fp32, and the sum is rounded once. An ordered reduction gives the same bits on every transport, for the same nodes
 * (comm_group_place). Transport nccl sums by levels: each member sums the shares of the owners with its own index in their nodes, over
 * its node, and sends these partial sums in fp32 to the owners; what goes over the node may be codes. The other transports exchange all shares. A `native`
 * reduction is the transport's own reduce-scatter.
 *
 * Threads: one thread at a time per comm (the executor's lock), but for comm_perform. Transports mpi and tcp run one
 * additional thread per rank, from open to close. This thread sends the heartbeats; its calls also let MPI make progress.
 *
 * Failures are sticky: comm_error() keeps the first failure, and every later call returns it. Every wait has a
 * deadline, but in a patient call the wait for a rank that is alive. A silent rank, a broken connection, or data that never
 * arrives ends in ZERO_E_PEER. A different call on some rank ends in ZERO_E_DIVERGED. Each message names the rank and the
 * call. MPI's own blocking calls have no deadline, but all ranks first meet in a wait that has one.
 *
 * After a failure, a peer may still read or write the buffers of calls that never finished (local: until every
 * rank has closed; mpi: until the process ends). Neither the transport nor the caller may free these buffers
 * before then. */
#pragma once

#include <stdbool.h>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/numbers/dtype.h"

enum comm_kind {
    /* count: elements of one share; target: members * count, or with a stride; in place: source = target + me * stride,
     * where `me` is this rank's index in the group */
    COMM_ALL_GATHER,
    /* count: elements of one share; source: members * count, or with a stride; in place: target = source + me * stride */
    COMM_REDUCE_SCATTER,
    COMM_ALL_REDUCE, /* count: elements of the whole, any number; in place: source = target */
    COMM_ALL_TO_ALL, /* count: elements of one share; source and target: members * count, distinct */
    COMM_BROADCAST,  /* count: elements; sent from `root` (index in the group); only target is used */
    COMM_BARRIER,
    COMM_KINDS
};

/* The transport calls this function when a part of a reduction's target is final. The parts come in order, in
 * blocks of NORM_BLOCK_ELEMENTS counted from the target's start; the last block may be shorter. The executor
 * computes norms here while the block is still in the cache. */
typedef void (*comm_written_fn)(void *user, const void *block, uint64_t first, uint64_t count);

/* The kernel that writes a reduction's target on a device also takes the sums of squares of the target's blocks of
 * NORM_BLOCK_ELEMENTS. `all`: the sums of the whole shard, of which `blocks` are added in order to *total, right after the sums of this
 * call, if `last`. Calls whose `all` is the same memory are summed one after another, on one stream. */
struct comm_norm {
    double *sums, *all, *total; /* sums: of the call's first block, in `all`; NULL: no norm */
    uint64_t blocks;
    bool last;
};

struct comm_call {
    enum comm_kind kind;
    enum dtype dtype;        /* of the source, and of the wire */
    enum dtype target_dtype; /* reductions only: dtype or DTYPE_F32 */
    uint64_t count;
    /* Elements from one share to the next in the target of an all-gather, and in the source of a reduce-scatter: a call
     * may move a part of each share of a whole. The same on all members; 0: count. A native reduction has none. */
    uint64_t stride;
    uint32_t root;
    uint32_t tag; /* part of the fingerprint: the region that the call serves */
    /* Part of the fingerprint and of messages: the unit's name, as "h.3"; the call copies up to 47 bytes; or NULL. */
    const char *what;
    const void *source;
    void *target;
    void *staging; /* comm_staging_bytes() bytes; NULL where comm_staging_bytes() is 0 */
    /* Reductions: the transport's own order of additions; the same on all members; mpi: fp32 only. */
    bool native;
    /* A reduce-scatter of a group that sends by levels (comm_group_levels): the source has the codes of the members' shares, one after
     * another (enum code_format, kernels/quantize.h), dtype is u8, and target_dtype the type of the sums. 0: elements. */
    uint8_t code;
    /* Reductions: add the sum to the target's content, in fp32, and round once. An all-reduce needs an fp32 target for it. */
    bool add;
    /* The wait lasts as long as the other ranks are alive: what a rank does before this call may take any time. Not part of
     * the fingerprint. */
    bool patient;
    /* An all-gather for which all members wait at once, as comm_rows makes it: transport tcp may pass it on from member to member. A
     * member that does not drive its calls then delays it for others. The same on all members. */
    bool passes;
    comm_written_fn written; /* reduce-scatter, or NULL; called from comm_test, comm_idle or comm_perform */
    void *written_user;
    struct comm_norm norm; /* reduce-scatter in memory of a device */
};

/* An all-gather of one row of bytes per member. Before the call, row 0 holds this rank's bytes; after it, row
 * 1 + r holds the bytes of member r. */
static inline struct comm_call comm_rows(void *rows, uint64_t row_bytes, const char *what) {
    return (struct comm_call){.kind = COMM_ALL_GATHER,
                              .dtype = DTYPE_U8,
                              .target_dtype = DTYPE_U8,
                              .count = row_bytes,
                              .what = what,
                              .passes = true,
                              .source = rows,
                              .target = (unsigned char *)rows + row_bytes};
}

/* A broadcast of elements at `data` from member `root` of the group. */
static inline struct comm_call comm_broadcast(void *data, enum dtype dtype, uint64_t count, uint32_t root,
                                              const char *what) {
    return (struct comm_call){.kind = COMM_BROADCAST,
                              .dtype = dtype,
                              .target_dtype = dtype,
                              .count = count,
                              .root = root,
                              .what = what,
                              .target = data};
}

struct comm;
struct device;
struct secret;
struct comm_group;
struct comm_work;
struct local_world;
struct sim_world;

enum {
    /* Calls of one group in flight, counted from the oldest unfinished one; slots are sequence mod 16. */
    COMM_CALLS_MAX = 16,
    COMM_TIMEOUT_S = 60,
};

struct comm_counters { /* since open, per rank; control messages are counted separately */
    uint64_t calls[COMM_KINDS];
    /* Sent by this rank: (members - 1) * count for all-gather, reduce-scatter and all-to-all, and for
     * broadcast at its root; 2 * (members - 1) * ceil(count / members) for all-reduce, half of it in
     * target_dtype. A sum by levels sends as many, nodes - 1 of them for each element of a share in fp32. */
    uint64_t elements[COMM_KINDS];
    uint64_t bytes; /* payload sent by this rank */
    uint64_t control_messages, control_bytes;
};

/* The transports. A new transport is one file, and its name here. */
struct comm_ops;
extern const struct comm_ops comm_self_ops, comm_local_ops, comm_mpi_ops, comm_tcp_ops, comm_nccl_ops,
    comm_sim_ops, comm_mirror_ops;

/* What a transport's row says of it. */
const char *comm_transport_name(const struct comm_ops *transport);
bool comm_of_processes(const struct comm_ops *transport); /* each of its ranks is a process */
bool comm_takes_secret(const struct comm_ops *transport); /* other programs may reach its ranks */
/* Its native reductions are of fp32 alone, on host memory. */
bool comm_native_fp32(const struct comm_ops *transport);

/* The kinds of calls for which transport nccl connects ranks when a group opens. */
enum comm_first {
    COMM_FIRST_GATHERS = 1,   /* all-gathers */
    COMM_FIRST_EXCHANGES = 2, /* all-to-alls, ordered reductions: each rank with every other one */
    COMM_FIRST_SUMS = 4,      /* native reductions */
    COMM_FIRST_BROADCASTS = 8
};

struct comm_options {
    uint32_t rank, size;
    /* The limit for the silence of a rank's heartbeat. The limit is 10 x timeout_s for a rank that sends heartbeats
     * but does not take its part in a call, and 12 x timeout_s for data that never arrives; a patient call has neither
     * of these two. 0: COMM_TIMEOUT_S. A network outage of up to 0.8 x timeout_s does not end the run. */
    double timeout_s;
    struct local_world *local; /* transport local: the ranks' common world */
    struct sim_world *sim;     /* transport sim: see sim.h */
    /* Transport mirror: plans this one's staging; self, local, mpi, tcp or nccl. */
    const struct comm_ops *mirrors;
    void *mpi_comm; /* transport mpi: points to an MPI_Comm to use, or NULL for MPI_COMM_WORLD */
    /* self, local, nccl: the buffers of calls are device memory or pinned memory of this device; NULL: host memory. */
    struct device *device;
    const char *master; /* transport tcp: the name or address at which rank 0 listens */
    uint32_t master_port;
    const struct secret *secret; /* transport tcp: all ranks of a job give the same; NULL: none */
    bool unchecked;              /* transport tcp: without checksums of data */
    bool by_runtime; /* rank, size, master and master_port are zero_runtime's, not torchrun's: for messages */
    /* Transport nccl: a comm of the same ranks on the host; the caller closes it later. */
    struct comm *beside;
    uint32_t first_calls; /* transport nccl: enum comm_first, of all calls on its groups; 0: any call */
    /* Returns whether the user wants this rank to end; or NULL. The thread that opens, waits (comm_run, comm_idle)
     * and closes calls it about every 100 ms. If it returns true, all ranks fail with ZERO_E_INTERRUPTED. MPI's own
     * blocking calls cannot call it. */
    bool (*interrupted)(void *user);
    void *interrupted_user;
    struct log log;
};

/* ---- opening ---- */

/* Collective over all ranks. On failure *out_comm is NULL and `error` says why. Transport mpi initializes MPI
 * if the host program did not; in this case MPI is finalized at exit, unless a comm failed. */
zero_status comm_open(const struct comm_ops *transport, const struct comm_options *options,
                      struct comm **out_comm, struct zero_error *error);

/* Call it after the groups are closed. A rank that waits, now or later, for a call that this rank never posted gets
 * ZERO_E_PEER. Transport mpi waits until all ranks close, at most 10 x timeout_s; transport tcp at most a second, and for the
 * end of an outage of the network. After a failure they wait at most half a second, so that the other ranks receive the
 * failure message. NULL is allowed. */
void comm_close(struct comm *comm);
const char *comm_name(const struct comm *comm);
uint32_t comm_rank(const struct comm *comm);
uint32_t comm_size(const struct comm *comm);

/* Collective over `ranks` (ascending; the caller is one of them). All ranks open their groups in the same order. */
zero_status comm_group_open(struct comm *comm, const uint32_t *ranks, uint32_t count,
                            struct comm_group **out_group);
/* The same with the members of a group of another rank of this thread (transport sim): both share the list of members, which is not
 * looked through. */
zero_status comm_group_open_like(struct comm *comm, const struct comm_group *other,
                                 struct comm_group **out_group);
/* Before the group's first call, the same on all members: nodes have `node_ranks` adjacent ranks, and adjacent members are `step`
 * ranks apart. Where the nodes do not divide the members evenly, and without this call, the members count as one node. */
void comm_group_place(struct comm_group *group, uint32_t node_ranks, uint32_t step);
/* Waits for the calls in flight, for at most one second, or timeout_s if it is less; time in which this rank gets no CPU time does
 * not count. The buffers of these calls must live until the group is closed. If a call is not done within this time, the
 * other ranks fail with ZERO_E_PEER. */
void comm_group_close(struct comm_group *group);
uint32_t comm_group_size(const struct comm_group *group);
uint32_t comm_group_index(const struct comm_group *group);        /* this rank's index among the members */
const uint32_t *comm_group_ranks(const struct comm_group *group); /* world ranks of the members, ascending */
/* The members of a node, which are adjacent. */
uint32_t comm_group_node_members(const struct comm_group *group);
bool comm_group_levels(const struct comm_group *group); /* its ordered reductions send by levels */

/* ---- calls ---- */

/* The bytes of scratch memory that a call of this shape needs. They depend on count and dtype, not on the pointers. The
 * caller plans this memory. */
uint64_t comm_staging_bytes(const struct comm_group *group, const struct comm_call *call);

/* The elements and bytes that one member sends for a call of this shape (for a broadcast: its root), and the ways that the
 * bytes take. The counters add the first two numbers. */
struct comm_sent {
    uint64_t elements, bytes;
    uint64_t ring;            /* of the bytes: along a ring of all members */
    uint64_t straight;        /* straight to the other members, equally much to each */
    uint64_t inside, between; /* by levels: to members of the node, then to one member of each other node */
};
struct comm_sent comm_call_sent(const struct comm_group *group, const struct comm_call *call);

/* True while COMM_CALLS_MAX calls are in flight: the next post must wait until the oldest call is done. */
bool comm_group_full(const struct comm_group *group);

/* Starts a call; allocates nothing (transport sim does: see sim.h). A count of 0 is legal and still matches the other
 * members' call. A refused post (an invalid argument, a full group) is a failure of this rank. All other ranks receive
 * the failure, because they would wait for the call. */
zero_status comm_post(struct comm_group *group, const struct comm_call *call, struct comm_work **out_work);

/* Drives the call. After *out_done is true, `work` is no longer valid. */
zero_status comm_test(struct comm_work *work, bool *out_done);

/* True: the streams of the comm's device order the group's calls. Then a call comes after the work that was queued on its streams
 * before its post, and no other rank reads or writes its buffers once comm_work_queued's ticket is done. */
bool comm_group_in_order(const struct comm_group *group);

/* True: a rank's calls of all groups begin in the order of their posts. Then all ranks must post the calls of all groups in one
 * order; else they may wait for each other forever. False: calls of different groups are independent of each other. */
bool comm_one_order(const struct comm *comm);

/* For a group whose calls are in order (above): the streams of the device that a call of this kind uses, one bit
 * each. */
uint8_t comm_streams(const struct comm_group *group, const struct comm_call *call);

/* For a group in order. True: all of the call is queued on the device, and done when *out_ticket is. The call still needs
 * comm_test. */
bool comm_work_queued(const struct comm_work *work, uint64_t *out_ticket);

/* For a posted call that needs no other rank: the bytes that comm_perform will write. 0: the call needs other ranks or a device, or
 * it writes nothing. */
uint64_t comm_alone_bytes(const struct comm_work *work);
/* Performs a call whose comm_alone_bytes is not 0. Call it once, before comm_test, from any thread, at the same time as other calls
 * of the comm. Without comm_perform, comm_test performs the call. */
void comm_perform(struct comm_work *work);

/* Posts the call and tests it until it is done: for set-up, checkpoints and tests. Not for transport sim, because its
 * ranks share one thread. */
zero_status comm_run(struct comm_group *group, const struct comm_call *call);

/* Drives all calls of this rank, then sleeps until a call may have advanced, for at most `at_most_ns`. A loop that
 * tests one call must call it, because a peer may wait for another call of this rank first. */
void comm_idle(struct comm *comm, uint64_t at_most_ns);

/* ---- failures ---- */

/* Makes this rank's failure known to all others: their next call returns ZERO_E_PEER with this message. */
void comm_fail(struct comm *comm, const struct zero_error *error);
/* After a failure: ends this comm's GPU work that waits for peers. Such peers may never come, and no one can free
 * memory of the GPU while this work waits. After this call, the caller may only close. NULL is allowed. */
void comm_abandon(struct comm *comm);
const struct zero_error *comm_error(const struct comm *comm); /* code ZERO_OK while nothing failed */
const struct zero_error *comm_group_error(const struct comm_group *group); /* of its comm */
const struct zero_error *comm_work_error(const struct comm_work *work);

/* This rank's call `what` of the interface (`unit`: of this one, or "") has waited for other ranks for a second, and has nothing else
 * under way. Called again as long as it waits: ranks that wait for each other in different calls get ZERO_E_DIVERGED (block.h).
 * comm_go_on: it waits no longer. */
void comm_stand(struct comm *comm, const char *what, const char *unit);
void comm_go_on(struct comm *comm);

/* A number that is equal on all ranks if all have posted the same calls. Each step's agreement compares it. */
uint64_t comm_fingerprint(const struct comm *comm);

void comm_counters_read(const struct comm *comm, struct comm_counters *out_counters);

/* ---- transport local: ranks are threads of one process ---- */

/* If a rank's thread has ended, another thread may continue for this rank. Until another thread does, a rank that waits
 * for this rank gets ZERO_E_PEER after timeout_s. */

struct local_world *local_world_create(uint32_t ranks);
void local_world_destroy(struct local_world *world); /* after every rank has closed its comm */

/* A rank has failed before it opened its comm: those that have opened theirs, or will, get this failure. Nothing happens once all ranks
 * have come. Any thread. */
void local_world_fail(struct local_world *world, const struct zero_error *error);

/* The calling thread continues for this rank, though it posts nothing yet. Other transports do nothing. */
void comm_attend(struct comm *comm);
