/* The executor's own structs. Only the files of this folder include this header, and tests that look at streams. */
#pragma once

#include "engine/executor/executor.h"
#include "kernels/tensor_norms.h"

/* Scalar sets that may be in use at once: two of the last step (for its backward, and for repeated updates), and one of the next
 * step. */
enum { SCALAR_SETS = 3, TRANSFERS_MAX = 4, JOBS_MAX = 32 };
/* Calls of an item's earlier rounds that are queued on the device, and for which the next rounds do not wait. */
enum { ROUNDS_QUEUED = 6 };

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
    AWAITS_ROOM,   /* until the groups of its kind have room for a call, and the device's stream for work */
    AWAITS
};

/* The parts of a chunk that have a checksum: the parts of its record, its parameters, its gradient. */
enum { SUM_PARAMS = RECORD_PARTS, SUM_GRADS, CHUNK_SUMS };

struct item;

/* A step of an item: it may start work, which the item awaits before its next step. */
typedef zero_status (*step_fn)(struct executor *e, struct item *item);

struct item { /* one point of an operation, from start to retirement */
    struct task *task;
    const step_fn *steps; /* of its kind of operation (perform.c) */
    uint32_t index;       /* index in the operation */
    bool done, posted;
    bool leaves;          /* REDUCE: all but the copy of its shard to the host's memory is done */
    uint64_t left;        /* with `leaves`: the ticket of that work; 0: it is done */
    bool waits;           /* it is in flight, and waits for the points that it needs (progress.c) */
    bool awaits_comm;     /* steps after its collective began before comm said that the collective is done */
    uint64_t before;      /* the ticket of its own queued work that no step has awaited; 0: none */
    uint8_t step, awaits; /* the next step, and the condition before that step */
    uint64_t moved;       /* elements of each share of a lent region (lent.c) */
    uint64_t taken; /* elements of the round's message that are copied from given gradients (reduce.c) */
    struct comm_work *work, *queued[ROUNDS_QUEUED]; /* queued: calls before `work` that no step has awaited */
    uint8_t queued_count;
    struct job *job;
    uint8_t job_queue;
    uint64_t ticket;
    uint8_t transfers;
    struct tier_work *transfer[TRANSFERS_MAX];
    uint64_t sum[CHUNK_SUMS]; /* FETCH and STORE: checksums of the bytes that were read, or will be written */
};

/* The item's next step is `step` again, and those after it follow. */
static inline void repeat_from(struct item *item, step_fn step) {
    for (item->step = 0; item->steps[item->step] != step;) item->step++;
}

/* A part of each share; the shares cut a whole region, or this rank's shard. */
struct part {
    uint64_t first, count, share; /* elements */
};

/* One stream: a ring of operations, and a ring of the items in flight, by point. */
struct timeline {
    struct task *task;
    uint64_t tasks, tasks_retired, tasks_started, tasks_emitted; /* tasks: room for them */
    uint32_t next;     /* the next item of the operation that is being started */
    uint32_t capacity; /* the most items in flight */
    bool unused;       /* no operation comes to it */
    struct item *item;
    uint64_t retired, started, emitted; /* in points: retired <= started <= emitted */
};

static inline struct task *task_at(const struct timeline *line, uint64_t number) {
    return &line->task[number % line->tasks];
}

static inline struct item *item_at(const struct timeline *line, uint64_t point) {
    return &line->item[point % line->capacity];
}

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
    bool *live;           /* per part of the gathered units' memory: a buffer there is in use */
    double *norm;         /* per region: sum of squares of this rank's shard; options.norms, if not NULL */
    bool *normed;         /* per region: `norm` belongs to the present gradient, or soon will */
    uint64_t parts_bytes; /* of the address space: in use */
    uint64_t computed;    /* the last point on the compute stream that the host has ended */
    struct agreement *mine, *all;
    struct scalar_set scalars[SCALAR_SETS];
    uint32_t set;
    bool set_begun; /* of the step */
    bool commits;   /* executor_commits */
    uint64_t trace;
    struct traffic traffic;
    _Atomic uint64_t update_ns; /* jobs add to it */
    struct jobs jobs;
    struct zero_error error;
};

/* ---- address.c: from symbolic buffers to planned ones, and to addresses. More addresses are in executor.h. ---- */
/* The planned buffer that a reference means now (NO_BUFFER: it is not in memory), and the variable that holds it. */
uint32_t bound_buffer(const struct executor *e, struct buffer_ref ref);
uint32_t *buffer_binding(const struct executor *e, struct buffer_ref ref);
void *buffer_address(const struct executor *e, uint32_t buffer);
/* The address of a buffer for an item: the item's own slot if the buffer is a ring, else the start of the buffer. */
void *item_address(const struct executor *e, const struct item *item, struct buffer_ref ref, uint32_t buffer);
/* A slot of the staging ring for chunks, and the slot after the ring. */
uint8_t *slot_address(const struct executor *e, uint64_t slot);
uint8_t *access_slot(const struct executor *e);
/* The address of this rank's part under `placement`, in a buffer that holds either that part alone or the whole
 * region. */
void *own_part_address(const struct executor *e, struct buffer_ref ref, uint32_t buffer,
                       struct placement placement, enum dtype dtype);
/* The directions of this rank's part of a region, in a buffer that has those of the whole region. */
float *part_of_directions(const struct executor *e, uint32_t region, uint32_t buffer,
                          struct placement placement);
/* True if the device is discrete and the address is in the host's memory. */
bool crosses(const struct executor *e, const void *address);
/* The memory that a part of the address space takes. */
uint64_t part_bytes(const struct executor *e, uint32_t buffer);

/* ---- region.c: what the executor knows of a region: its policy, types, optimizer and unit, and the sizes of its parts ---- */
const struct region *policy_region(const struct executor *e, uint32_t region);
/* The region behind a reference, if the host program's memory takes the buffer's place; else NULL. */
const struct model_region *lent_region(const struct executor *e, struct buffer_ref ref);
/* Which type is where in a region. */
struct precision precision_of(const struct executor_shape *o, uint32_t region);
/* The same for an operation: directions are fp32, also when sent. Norms of tensors are sent as words of the size of
 * fp32. */
struct precision moved_precision(const struct executor_shape *o, const struct operation *op);
/* Elements of one part of a region under a placement, and of the part that this rank holds. */
uint64_t part_elements(const struct executor_shape *o, uint32_t region, struct placement placement);
uint64_t shard_elements(const struct executor *e, uint32_t region, struct placement placement);
/* The gradient shard that a reduction writes: its placement, also where the step needs the whole gradient, and its
 * size. */
struct placement grad_shard_placement(const struct region *r);
const struct optimizer *region_optimizer(const struct executor *e, uint32_t region);
const char *unit_name(const struct executor *e, uint32_t region);

/* ---- submit.c: work and copies on the device ---- */
/* Lets streams of the device (a bit for each) wait for a ticket; 0: for nothing. */
zero_status await_ticket(struct executor *e, uint8_t streams, uint64_t ticket);
/* Start work or a copy; the item awaits it. */
zero_status submit(struct executor *e, struct item *item, const struct kernel *kernel,
                   enum device_stream stream, const void *argument, struct device_work *work);
zero_status clear_memory(struct executor *e, struct item *item, enum device_stream stream, void *memory,
                         uint64_t bytes);
zero_status copy(struct executor *e, struct item *item, enum device_stream stream, void *target,
                 const void *source, uint64_t bytes);

/* ---- job.c: jobs of items. The threads that run jobs use executor.h. ---- */
/* Gives the item a job that reads or writes `bytes` bytes; false: the work is too small for a job or not the host's, or there is
 * no free job. */
bool job_submit(struct executor *e, struct item *item, enum job_queue queue, const struct kernel *kernel,
                const void *argument, uint64_t bytes);
/* Tests the item's job, and removes a job that is done. */
zero_status job_test(struct executor *e, struct item *item, bool *out_done);

/* ---- collective.c: gathers and reductions post calls. Where comm has one order of calls, an item posts its first call once all
 * gathers and reductions that were emitted before it, on the other streams, have posted their last one. ---- */
bool posts_calls(const struct operation *op);
bool has_posted(const struct item *item); /* its last call */
bool collective_turn(const struct executor *e, const struct item *item);
zero_status post_call(struct executor *e, struct item *item, struct comm_group *group,
                      const struct comm_call *call);
/* The calls of many units, queued behind a call that waits for a peer, would have more tickets than the device's stream has room for. */
bool stream_has_room(struct executor *e, const struct operation *op);
/* In a step, before it posts a call, or queues one of any number of copies (`group` NULL). True: the group, or the device's stream, is
 * full; the step ends, and comes again when there is room. */
bool await_room(struct executor *e, struct item *item, const struct comm_group *group);
/* Posts a gather or a reduction, and adds comm's counters of that call to executor_traffic. `codes`: elements per
 * share whose codes are sent; 0: elements are sent. */
zero_status post_counted(struct executor *e, struct item *item, struct comm_group *group,
                         const struct comm_call *call, uint64_t codes);
