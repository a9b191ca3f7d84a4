/* The executor's own structs. Only the files of this folder include this header. */
#ifndef ZERO_ENGINE_EXECUTOR_INTERNAL_H
#define ZERO_ENGINE_EXECUTOR_INTERNAL_H

#include "engine/executor/executor.h"
#include "kernels/tensor_norms.h"

/* Scalar sets that may be in use at once: two of the last step (for its backward, and for repeated updates), and one of the next
 * step. */
enum { SCALAR_SETS = 3, TRANSFERS_MAX = 4, JOBS_MAX = 32 };

struct job { /* job.c */
    atomic_int state;
    const struct kernel *kernel;
    _Alignas(16) uint8_t argument[DEVICE_ARGUMENT_BYTES];
};

struct job_line { /* the jobs of a queue */
    struct job ring[JOBS_MAX];
    uint64_t submitted, taken, ended;
};

struct jobs {
    struct job_line line[JOB_QUEUES];
    uint64_t from_bytes;        /* work that writes less is done at once */
    void (*queued)(void *user); /* NULL: all work is done at once */
    void *user;
};

struct task { /* an emitted operation */
    struct operation op;
    uint32_t read[OPERATION_BUFFERS_MAX], write[OPERATION_BUFFERS_MAX]; /* planned buffers */
    uint64_t collective; /* GATHER and REDUCE: how many of both were emitted before it, on all streams */
    uint8_t scalars;     /* UPDATE: index of its scalar set */
    /* Running ahead: the streams of the device that wait for what the operation needs. 0: the host waits. */
    uint8_t ahead;
};

enum awaits {
    AWAITS_NOTHING,
    AWAITS_HOST,   /* until the host ends its use */
    AWAITS_DEVICE, /* `ticket` */
    AWAITS_COMM,   /* `work`, which `job` may do */
    AWAITS_TURN,   /* until all earlier items of its stream have posted their collective */
    AWAITS_DRIVE,  /* `transfer` */
    AWAITS_JOB,    /* `job` */
    AWAITS
};

/* The parts of a chunk that have a checksum: the parts of its record, its parameters, its gradient. */
enum { SUM_PARAMS = RECORD_PARTS, SUM_GRADS, CHUNK_SUMS };

struct item { /* one point of an operation, from start to retirement */
    struct task *task;
    uint32_t index; /* index in the operation */
    bool done, posted;
    bool waits;           /* it is in flight, and waits for the points that it needs (progress.c) */
    bool trails;          /* steps after its collective began before comm said that the collective is done */
    uint64_t before;      /* the ticket of its own queued work that no step has awaited; 0: none */
    uint8_t step, awaits; /* the next step (perform.c), and the condition before that step */
    uint64_t moved;       /* elements of each share of a lent region (lent.c) */
    struct comm_work *work;
    struct job *job;
    uint8_t job_queue;
    uint64_t ticket;
    uint8_t transfers;
    struct tier_work *transfer[TRANSFERS_MAX];
    uint64_t sum[CHUNK_SUMS]; /* FETCH and STORE: checksums of the bytes that were read, or will be written */
};

/* A part of each share; the shares cut a whole region, or this rank's shard. */
struct part {
    uint64_t first, count, share; /* elements */
};

/* One stream: a ring of operations, and a ring of the items in flight, by point. */
struct timeline {
    struct task *task;
    uint64_t task_mask, tasks_retired, tasks_started, tasks_emitted;
    uint32_t next;     /* the next item of the operation that is being started */
    uint32_t capacity; /* the most items in flight */
    struct item *item;
    uint64_t item_mask, retired, started, emitted; /* in points: retired <= started <= emitted */
};

/* A part of a chunk's record on the drive. */
struct version {
    /* How often it was stored or, with a shadow, the epoch in which it was stored. 0: never stored, so the state is zero. */
    uint64_t generation;
    uint64_t checksum;
    bool resumed; /* an earlier process stored it: only the record's tag has the checksum */
};

/* What the drive has of a chunk. */
struct stored {
    struct version part[RECORD_PARTS];
    struct version before[RECORD_PARTS]; /* with a shadow: in the other place, from an earlier epoch */
    uint64_t param_check;                /* checksum of the chunk's parameters */
    uint64_t grad_check;                 /* and of its gradient */
    bool has_params;                     /* the parameters were stored; false: they are zero */
    bool has_grads;                      /* the gradient was stored; false: it is zero */
};

/* A slot with a chunk for the host between steps, or for a save in the background. */
struct held {
    uint32_t region, chunk;
    /* Parts of the chunk: in the slot; being read by `item`; changed, and not stored yet. */
    uint8_t there, coming, dirty;
    bool going;  /* `item` writes */
    bool unseen; /* read ahead; the host has not asked for it yet */
    struct item item;
};

struct access {
    struct held *held; /* the access slot, and the slots of the ring */
    uint32_t count;    /* the number of these in use: 1; in a sweep all */
    uint32_t current;  /* the slot that executor_chunk_poll gave last */
    uint32_t next;     /* the slot that the next chunk takes */
    /* A sweep's regions, in their order (NULL: of their indices); the place of the current one; parts that are read of each
     * chunk. */
    const uint16_t *order;
    uint32_t regions, at;
    uint8_t parts;
};

struct scalar_set {
    float scale, average_share;
    uint64_t rounding_key;
    struct optimizer_scalars group[SCALARS_MAX];
};

struct executor {
    struct executor_options o;
    struct executor_mechanisms m;
    bool ahead;     /* what waits for queued work is queued behind it (ahead.c) */
    bool one_order; /* comm_one_order: gathers and reductions post in the order of emission (collective.c) */
    uint64_t collectives; /* gathers and reductions that were emitted */
    uint64_t steps;       /* of items, that were made */
    struct timeline stream[STREAMS];
    struct hazards hazards;
    struct offload offload;
    struct stored *stored; /* per chunk of all regions */
    uint64_t epoch;        /* with a shadow: epoch of the chunks stored now; 1 + the last committed epoch */
    struct access access;
    const atomic_uchar *go;               /* executor_hold */
    struct operation_list list, expanded; /* scratch: list of one event; list of one operation, expanded */
    uint32_t *bound;      /* [2][regions]: buffer of the full parameters, of the full gradient */
    bool *live;           /* per buffer: its interval is open */
    double *norm;         /* per region: sum of squares of this rank's shard; options.norms, if not NULL */
    bool *normed;         /* per region: `norm` belongs to the present gradient, or soon will */
    uint64_t parts_bytes; /* of the address space: in use */
    uint64_t computed;    /* the last point on the compute stream that the host has ended */
    struct agreement *mine, *all;
    struct scalar_set scalars[SCALAR_SETS];
    uint32_t set;
    bool settled; /* executor_settle has begun the step's set */
    uint64_t trace;
    struct traffic traffic;
    _Atomic uint64_t update_ns; /* jobs add to it */
    struct jobs jobs;
    struct zero_error error;
};

#endif
