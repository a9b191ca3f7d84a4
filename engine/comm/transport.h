/* The interface between the front (comm.c) and the transports. No other file includes it.
 *
 * A transport's own comm and group structs begin with the base structs here. The front allocates them, zeroed,
 * fills in the base, and owns it. A work is a slot of its group: slot sequence mod COMM_CALLS_MAX. Therefore the
 * members of a group find each other's calls without a search. A transport keeps its own data per work in an array
 * with the same index. The front calls a transport only while nothing has failed, except close, group_close and
 * abandon. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "engine/base/error.h"
#include "engine/comm/comm.h"
#include "engine/comm/record.h"

/* The first failure that a rank's process knows of. The thread that finds a failure first writes it (the rank's
 * thread, a peer's thread, or the control thread). Every rank that shares the struct reads it at its next call.
 * Threads: any. */
struct comm_failure {
    atomic_bool raised;
    pthread_mutex_t mutex;
    struct zero_error error; /* final once raised */
    bool waits;              /* the message ends with the call in which the reading rank waited */
};

void comm_failure_init(struct comm_failure *failure);
void comm_failure_destroy(struct comm_failure *failure);

/* Keeps the first failure. True if `error` is the first. */
bool comm_failure_raise(struct comm_failure *failure, const struct zero_error *error, bool waits);

static inline bool comm_failure_raised(const struct comm_failure *failure) {
    return atomic_load_explicit(&failure->raised, memory_order_acquire);
}

struct control;
struct comm_block;

struct comm {
    const struct comm_ops *ops;
    uint32_t rank, size;
    double timeout_s;
    bool (*interrupted)(void *user); /* or NULL: see comm_options */
    void *interrupted_user;
    uint64_t asked_ns;   /* time of the last call of `interrupted` */
    uint64_t leaving_ns; /* waited for calls in flight while groups close */
    struct log log;
    struct device *device;        /* NULL: the host's memory */
    struct comm_failure *failure; /* set by the transport's open; ranks that share memory share it */
    struct zero_error error;      /* this rank's sticky error */
    struct comm_counters counters;
    _Atomic uint64_t control_messages, control_bytes;
    _Atomic uint64_t tested_ns; /* when a call was last tested */
    uint64_t fingerprint;
    /* A hash of the members of every group opened so far: counts groups of the same members. */
    uint64_t *opened;
    uint32_t opened_count, opened_capacity;
    struct comm_group *groups; /* open ones */
    struct control *control;   /* set by watch_start; NULL: there is none */
    uint32_t queued;           /* works on the device: their end wakes no thread, so waits must poll */
    bool one_order;            /* see comm_one_order; set by the transport's open */
    bool
        levels; /* as NCCL: reductions send by levels (comm.h), and gathers with a stride go through staging */
    bool blocked;      /* this rank has told others what it waits for (comm_stand) */
    bool without_data; /* calls have no buffers (simulations of many ranks) */
};

struct comm_work {
    struct comm_group *group;
    struct comm_call call;
    struct comm_record record;
    uint64_t posted_ns;
    uint64_t tested_ns,
        waited_ns;            /* time of the last test; time waited in tests, without the host's own pauses */
    uint64_t ticket;          /* of the call's work on the device, while `queued` */
    bool busy, begun, queued; /* begun: only transport self uses it */
    bool told;                /* the log has a line about the wait for a patient call */
};

struct comm_members {
    uint64_t hash;
    uint32_t holders;
    uint32_t rank[]; /* ascending */
};

struct comm_group {
    struct comm *comm;
    struct comm_group *next;
    struct comm_members *members; /* groups of the same members have one */
    const uint32_t *ranks;        /* its ranks */
    uint32_t count, index;
    uint32_t nodes;    /* of the members, each with equally many; see comm_group_place */
    uint32_t ordinal;  /* this rank numbers its groups in the order of opening: for messages */
    uint64_t key;      /* equal on all members, different for every other group */
    uint64_t sequence; /* of the next call */
    uint64_t hash;     /* of all calls so far */
    struct comm_work works[COMM_CALLS_MAX];
};

struct comm_ops {
    const char *name;
    size_t comm_bytes, group_bytes;
    bool virtual_time; /* ranks share a thread: none may wait, and the real clock's limits do not apply */
    bool knows_ranks;  /* `open` finds rank and size itself */
    bool processes;    /* each rank is a process */
    bool secret;       /* `open` takes options->secret, by which ranks know each other */
    bool native_fp32;  /* native reductions are of fp32 alone, on host memory */
    bool levels;       /* see struct comm */

    /* True if these options make a world of one rank, which is `self`'s; or NULL. */
    bool (*alone)(const struct comm_options *options);
    /* Sets comm->failure; may correct rank and size. On failure it releases all that it has acquired. */
    zero_status (*open)(struct comm *comm, const struct comm_options *options, struct zero_error *error);
    void (*close)(struct comm *comm);
    zero_status (*group_open)(struct comm_group *group);
    void (*group_close)(struct comm_group *group);
    /* NULL: the transport needs no staging. */
    uint64_t (*staging_bytes)(const struct comm_group *group, const struct comm_call *call);
    zero_status (*post)(struct comm_work *work); /* never waits */
    zero_status (*test)(struct comm_work *work, bool *out_done);
    /* Does all of a call in the host's memory, before its first test; see comm_perform. NULL: calls need other ranks. */
    void (*perform)(struct comm_work *work);
    /* See comm_group_in_order, comm_streams and comm_work_queued; NULL: no group is in order. */
    bool (*in_order)(const struct comm_group *group);
    uint8_t (*streams)(const struct comm_call *call);
    bool (*queued)(const struct comm_work *work, uint64_t *out_ticket);
    /* The world rank of a member whose part of the call has not arrived; -1: unknown. Or NULL. */
    int32_t (*late)(const struct comm_work *work);
    /* Drives all calls of the group, because peers may wait for them; or NULL. */
    void (*progress)(struct comm_group *group);
    void (*idle)(struct comm *comm, uint64_t at_most_ns);
    /* This rank is blocked (block.h), as it was before in `again`, or is not any more (calls 0). NULL: the control channel tells and
     * judges. */
    void (*block)(struct comm *comm, const struct comm_block *block, bool again);
    /* This rank raised comm->failure: wakes the other ranks to see it; or NULL. */
    void (*announce)(struct comm *comm);
    /* See comm_abandon; NULL: the transport has no work that waits on a GPU. */
    void (*abandon)(struct comm *comm);
};

/* The index of a rank among the members; group->count: it is none. */
uint32_t member_of(const struct comm_group *group, uint32_t rank);

/* The index of a work in its group, for the transport's own arrays. */
static inline uint32_t work_slot(const struct comm_work *work) {
    return (uint32_t)(work->record.sequence % COMM_CALLS_MAX);
}

/* True if the group's ordered reductions send by levels. */
static inline bool group_levels(const struct comm_group *group) {
    return group->comm->levels && group->nodes > 1 && group->nodes < group->count;
}

/* When the time begins in which the other members must take their part; UINT64_MAX: there is no limit. */
static inline uint64_t work_counts_ns(const struct comm_work *work) {
    return work->call.patient ? UINT64_MAX : work->posted_ns;
}

/* Raises a failure that all ranks will see; the front passes it on to comm_error. `rank` is the rank at fault,
 * or -1. `waits`: each rank ends the message with the call in which it waited. Any thread. Returns the code. */
zero_status comm_raise_error(struct comm *comm, const struct zero_error *error, bool waits);
zero_status comm_raise(struct comm *comm, zero_status code, int32_t rank, bool waits, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* The failures that more than one transport finds, about a call of the group with the number `ordinal` on this
 * rank. `peer` is the world rank at fault. Any thread. */
zero_status comm_raise_diverged(struct comm *comm, uint32_t ordinal, const struct comm_record *mine,
                                uint32_t peer, const struct comm_record *theirs);
zero_status comm_raise_left(struct comm *comm, uint32_t ordinal, const struct comm_record *record,
                            uint32_t peer);
zero_status comm_raise_silent(struct comm *comm, uint32_t peer, double silent_s);
zero_status comm_raise_stuck(struct comm *comm, uint32_t ordinal, const struct comm_record *record,
                             uint32_t peer, double waited_s);

enum { COMM_ASK_NS = 50000000 };

/* Calls comm->interrupted, at most once per COMM_ASK_NS, and raises ZERO_E_INTERRUPTED if it returns true. Only the
 * thread that waits may call it. */
void comm_ask_interrupted(struct comm *comm);
void comm_raise_interrupted(struct comm *comm);

/* Whether a call posted at `posted_ns` has passed the limit for a rank that sends heartbeats but does not take its
 * part (10 x timeout_s). */
static inline bool deadline_passed(double timeout_s, uint64_t posted_ns, uint64_t now_ns) {
    return now_ns > posted_ns && (double)(now_ns - posted_ns) > timeout_s * 10e9;
}
