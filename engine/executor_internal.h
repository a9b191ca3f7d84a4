/* What the executor's files share; not for others. */
#ifndef ZERO_ENGINE_EXECUTOR_INTERNAL_H
#define ZERO_ENGINE_EXECUTOR_INTERNAL_H

#include "engine/executor.h"

enum { SCALAR_SETS = 2, TRANSFERS_MAX = 2 };

struct task { /* an operation that was emitted */
    struct operation op;
    uint32_t read[OPERATION_BUFFERS_MAX], write[OPERATION_BUFFERS_MAX]; /* planned buffers */
    uint8_t scalars;                                                    /* UPDATE: which set */
};

enum awaits {
    AWAITS_NOTHING,
    AWAITS_HOST,   /* that it ends its use */
    AWAITS_DEVICE, /* `ticket` */
    AWAITS_COMM,   /* `work` */
    AWAITS_TURN,   /* those before it on its stream have posted */
    AWAITS_DRIVE,  /* `transfer` */
    AWAITS
};

struct item { /* one of its points, from its start to its retirement */
    struct task *task;
    uint32_t index; /* in the operation */
    bool done, posted;
    uint8_t step, awaits; /* the next step (perform.c), and what must be done before */
    struct comm_work *work;
    uint64_t ticket;
    uint8_t transfers;
    struct tier_work *transfer[TRANSFERS_MAX];
};

/* Of one stream: a ring of operations, and a ring of the items that are in flight, by point. */
struct timeline {
    struct task *task;
    uint64_t task_mask, tasks_retired, tasks_started, tasks_emitted;
    uint32_t next;     /* item of the operation that is being started */
    uint32_t capacity; /* items in flight */
    struct item *item;
    uint64_t item_mask, retired, started, emitted; /* points: retired <= started <= emitted */
};

/* What is known of a chunk on the drive. */
struct stored {
    uint64_t
        generation; /* of its state: how often it was stored, or with a shadow in which epoch; 0: never, it is zero */
    uint64_t checksum;    /* of that */
    uint64_t param_check; /* of its parameters */
    bool has_params;      /* they were stored; else they are zero */
    bool resumed;         /* an earlier process stored the state: its tag alone says what it was */
};

struct
    access { /* of the host, between steps, or of a save in the background: the chunk that is in the last slot */
    bool valid, dirty;
    uint32_t region, chunk;
    bool coming; /* it is on its way: `item` */
    struct item item;
};

struct scalar_set {
    float scale;
    uint64_t rounding_key;
    struct optimizer_scalars group[SCALARS_MAX];
};

struct executor {
    struct executor_options o;
    struct timeline stream[STREAMS];
    struct hazards hazards;
    struct offload offload;
    struct stored *stored; /* per chunk of all regions */
    uint64_t epoch;        /* with a shadow: of what is stored now; 1 + the last one that was committed */
    struct access access;
    const atomic_uchar *go;               /* executor_hold */
    struct operation_list list, expanded; /* scratch of one event, and of one of its operations */
    uint32_t *bound; /* [2][regions]: the interval that holds full parameters, full gradient */
    bool *live;      /* per buffer: an interval that is open */
    double *norm;    /* per region: sum of squares of this rank's shard; the options', where they bring it */
    bool *normed;    /* per region: `norm` is of the gradient as it is, or will be */
    uint64_t computed; /* COMPUTE operations that the host has ended: the last one's point */
    struct agreement *mine, *all;
    struct scalar_set scalars[SCALAR_SETS];
    uint32_t set;
    uint64_t trace;
    struct traffic traffic;
    double update_s;
    struct zero_error error;
};

/* perform.c: how each kind of operation is started, and whether it is done. */
zero_status perform_start(struct executor *e, struct item *item);
zero_status perform_test(struct executor *e, struct item *item, bool *out_done);

/* The part that this rank holds under `placement`, in a buffer that holds either only that part or the whole.
 */
void *own_part_address(const struct executor *e, struct buffer_ref ref, uint32_t buffer,
                       struct placement placement, enum dtype dtype);

/* What the steps of items start, and await: work of the device ... */
zero_status submit(struct executor *e, struct item *item, const struct kernel *kernel,
                   enum device_stream stream, const void *argument, struct device_work *work);
zero_status copy(struct executor *e, struct item *item, enum device_stream stream, void *target,
                 const void *source, uint64_t bytes);
/* The device is separate, and this is the host's memory. */
bool crosses(const struct executor *e, const void *address);

/* update.c: in memory that the host reaches, or by the device. */
zero_status leave_whole(struct executor *e,
                        struct item *item); /* a whole gradient, to where the host updates */
zero_status bring_for_update(struct executor *e, struct item *item);
zero_status update(struct executor *e, struct item *item);
zero_status take_updated(struct executor *e, struct item *item);

/* quantized.c: a gather or a scatter of codes: what is posted in its place, and what is made of what came. */
/* The shape of what is posted in place of a call of elements; as it is, where nothing is coded. */
struct comm_call coded_call(const struct executor_options *o, const struct operation *op,
                            struct comm_call call);
bool gathers_codes(const struct item *item);
zero_status code_gather(struct executor *e, struct item *item, const void *source,
                        const struct comm_call *call);
void coded_gather_call(const struct executor *e, const struct item *item, struct comm_call *call);
zero_status decode_gather(struct executor *e, struct item *item);
uint64_t reduce_code_bytes(const struct executor_options *o, uint64_t share, uint32_t members);
bool reduces_codes(const struct executor *e, const struct item *item);
zero_status code_reduce(struct executor *e, struct item *item, const void *source,
                        const struct comm_call *call);
void coded_reduce_call(const struct executor *e, const struct item *item, struct comm_call *call);
zero_status decode_reduce(struct executor *e, struct item *item, void *target, uint64_t share);

/* transfer.c: chunks to and from the drive. */
zero_status fetch_chunk(struct executor *e, struct item *item);
zero_status check_fetched(struct executor *e, struct item *item);
zero_status store_chunk(struct executor *e, struct item *item);
uint8_t *slot_address(const struct executor *e, uint64_t slot);
uint8_t *access_slot(const struct executor *e); /* the one that the ring does not use */
/* A chunk between its place on the drive and a slot, and what else the drive holds: each starts transfers of the item. */
zero_status transfer_post(struct executor *e, struct item *item, bool write, uint64_t place, uint64_t bytes,
                          void *memory);
zero_status transfer_read(struct executor *e, struct item *item, uint32_t region, const struct chunk *c,
                          uint8_t *slot);
zero_status transfer_write(struct executor *e, struct item *item, uint32_t region, const struct chunk *c,
                           uint8_t *slot);
zero_status transfer_done(struct executor *e, struct item *item, bool *out_done);
/* What was read is what was stored; else ZERO_E_IO. */
zero_status transfer_check(struct executor *e, uint32_t region, const struct chunk *c, const uint8_t *slot);

/* chunk_access.c: a dirty chunk goes to the drive, now. */
zero_status access_flush(struct executor *e);

void *buffer_address(const struct executor *e, uint32_t buffer);

#endif
